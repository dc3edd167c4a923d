//! A worker's place in a pipeline: the part of the model that it computes, and the way to its neighbours.
//!
//! A replica of several stages is a pipeline over its micro-batches. Each stage adds its gradients in the order of the
//! micro-batches, so the numbers are those of the whole model on one device. Huang et al. 2019, "GPipe: Efficient
//! Training of Giant Neural Networks using Pipeline Parallelism"; Narayanan et al. 2019, "PipeDream: Generalized
//! Pipeline Parallelism for DNN Training".

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use kiln_ops::Shared;
use kiln_system::{Error, Result};
use tracing::info_span;

use super::task::{Unit, unit_of};
use super::wire::{Outbox, of_bytes, outbox, receive, send, to_bytes};
use super::{Broken, Collective, HostBackend, Key, Operation, Shard, Task, Wait, World, waiting};
use crate::nn::trained_parameters;

/// The forward or the backward pass of one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The forward pass of this micro-batch.
    Forward(usize),
    Backward(usize),
}

/// The part of the model that a stage computes, and what the stage before has computed, unless it is the first.
pub(super) struct ModelPart<B: HostBackend> {
    pub(super) units: Range<usize>,
    pub(super) activations: Option<FloatTensor<B>>,
    /// Whether the stages before need the gradient of that.
    pub(super) is_trained_before: bool,
}

impl<B: HostBackend> ModelPart<B> {
    pub(super) fn whole<T: Task<B>>(task: &T) -> Self {
        Self { units: 0..task.units().len(), activations: None, is_trained_before: false }
    }
}

pub(super) struct Stage<B: HostBackend> {
    /// From 0.
    pub(super) number: usize,
    pub(super) units: Range<usize>,
    /// The most units of a stage.
    pub(super) longest: usize,
    all_units: Vec<Unit>,
    /// The first unit that is not frozen: the gradient goes back to its stage and no further.
    pub(super) first_trained: usize,
    pub(super) everyone: Arc<Collective>,
    replica: usize,
    pub(super) world: World,
    device: B::Device,
    /// To its neighbours, where tensors go from device to device.
    outboxes: BTreeMap<usize, Outbox<B>>,
}

/// The units of each of `stages` stages of a model whose units cost `costs`, of which the later stages begin at
/// `points`. Without any it is the cut whose most expensive stage costs least.
///
/// # Errors
/// If there are fewer units than stages, or if a stage would have none.
pub fn cut(costs: &[f64], stages: usize, points: &[usize]) -> Result<Vec<Range<usize>>> {
    let units = costs.len();
    if stages > units {
        return Err(Error::usage(format!(
            "every stage needs a part of the model, got '{stages}' stages for a model of {units} parts; use --stages \
             {units} or fewer"
        )));
    }
    if !points.is_empty() {
        let ends: Vec<usize> = [&[0], points, &[units]].concat();
        let parts: Vec<_> = ends.windows(2).map(|ends| ends[0]..ends[1]).collect();
        let fits = parts.len() == stages && parts.iter().all(|part| !part.is_empty());
        let remedy =
            format!("each later stage begins at a unit from 1 to {}, above that of the stage before", units - 1);
        return fits.then_some(parts).ok_or_else(|| {
            Error::usage(format!("every stage needs a part of the model, got the split points {points:?}; {remedy}"))
        });
    }
    let cost = |part: Range<usize>| costs[part].iter().sum::<f64>();
    // The best cut of the first units, and the cost of its most expensive stage, by the number of units.
    let mut best: Vec<(f64, Vec<Range<usize>>)> = vec![(0.0, Vec::new()); units + 1];
    for stage in 1..=stages {
        let with = |end: usize, start: usize, before: &(f64, Vec<Range<usize>>)| {
            let mut parts = before.1.clone();
            parts.push(start..end);
            (before.0.max(cost(start..end)), parts)
        };
        let of = |end: usize| {
            // Of one stage alone there is nothing to choose.
            let starts = if stage == 1 { 0..1 } else { stage - 1..end };
            let cuts = starts.map(|start| with(end, start, &best[start]));
            cuts.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, Vec::new()))
        };
        best = (0..=units).map(|end| if end < stage { (f64::INFINITY, Vec::new()) } else { of(end) }).collect();
    }
    Ok(best.swap_remove(units).1)
}

impl<B: HostBackend> Stage<B> {
    pub(super) fn new<T: Task<B>>(
        world: &World,
        cut: &[Range<usize>],
        task: &T,
        model: &T::Model,
        everyone: Arc<Collective>,
        device: B::Device,
    ) -> Result<Self> {
        let (worker, most) = (everyone.rank(), world.stages);
        let (number, replica) = (worker / world.size, worker % world.size);
        let (units, longest) = (cut[number].clone(), cut.iter().map(Range::len).max().unwrap_or_default());
        let all_units = task.units();
        let first_trained = first_trained(&all_units, model);
        // No stage begins more micro-batches than there are stages before the gradient of one comes back.
        let neighbours = [worker.checked_sub(world.size), Some(worker + world.size)].into_iter().flatten();
        let to = |worker| Some((worker, outbox(&everyone, worker, most).transpose()?));
        let outboxes = neighbours.filter_map(to).map(|(worker, it)| Ok((worker, it?))).collect::<Result<_>>()?;
        let world = world.clone();
        Ok(Self { number, units, longest, all_units, first_trained, everyone, replica, world, device, outboxes })
    }

    pub(super) fn is_whole(&self) -> bool {
        self.world.stages == 1
    }

    pub(super) fn is_first(&self) -> bool {
        self.number == 0
    }

    pub(super) fn is_last(&self) -> bool {
        self.number + 1 == self.world.stages
    }

    pub(super) fn shards<I: Iterator<Item = Shard> + Clone>(
        &self,
        of_replica: I,
    ) -> impl Iterator<Item = Shard> + Clone + use<B, I> {
        let targets_only = !self.is_first();
        of_replica.map(move |shard| Shard { targets_only, ..shard })
    }

    pub(super) fn is_alone(&self) -> bool {
        self.world.blocks.iter().all(|block| block.len() == 1)
    }

    /// The order of forward and backward passes. With a process for each worker, a stage holds no more micro-batches
    /// than there are later stages. Elsewhere all forward passes come first, since no backward pass may run during a
    /// forward pass of the same process.
    pub(super) fn turns(&self, micro_batches: usize) -> Vec<Turn> {
        turns(micro_batches, ahead([self.number, self.world.stages], self.is_alone(), micro_batches))
    }

    /// For how many backward passes this worker waits before its first one, and how many come after its last one, where
    /// the stages of a process go back in step.
    pub(super) fn idle(&self) -> [usize; 2] {
        [self.world.stages - 1 - self.number, self.number]
    }

    fn send(&self, key: Key, worker: usize, values: FloatTensor<B>) -> std::result::Result<(), Broken> {
        if !self.everyone.is_here(worker) {
            return send::<B>(&self.everyone, self.outboxes.get(&worker), key, worker, values);
        }
        // The tensor itself, if the other worker can use it.
        let same = self.world.device_of(worker) == self.world.device_of(self.everyone.rank());
        if B::CAN_SHARE || same {
            self.everyone.threads.post(key, Arc::new(B::share(values)))
        } else {
            self.everyone.threads.post(key, Arc::new(to_bytes::<B>(values)))
        }
    }

    fn receive(&self, key: Key, from: usize) -> std::result::Result<FloatTensor<B>, Broken> {
        let worker = self.worker(from);
        if !self.everyone.is_here(worker) {
            return receive::<B>(&self.everyone, key, worker, &self.device);
        }
        let part = match self.everyone.threads.fetch(key)?.downcast::<Shared<B>>() {
            Ok(shared) => return Ok(B::adopt(Arc::unwrap_or_clone(shared), &self.device)),
            Err(part) => part,
        };
        Ok(of_bytes::<B>(part.downcast_ref::<Vec<u8>>().expect("a tensor or its bytes"), &self.device))
    }

    /// Whether this stage has the tensor `name`; what belongs to no unit is everywhere.
    pub(super) fn has(&self, name: &str) -> bool {
        self.is_whole() || unit_of(&self.all_units, name).is_none_or(|unit| self.units.contains(&unit))
    }

    /// This stage's part of the model, once the stage before has computed its own.
    pub(super) fn part(&self, key: Key) -> std::result::Result<ModelPart<B>, Broken> {
        let own = Key { operation: Operation::Activations { to: self.everyone.rank() }, ..key };
        let wait = |before| waiting(Wait::Others, || self.receive(own, before));
        let receive = |before| info_span!("wait for the stage before").in_scope(|| wait(before));
        let activations = self.number.checked_sub(1).map(receive).transpose()?;
        Ok(ModelPart {
            units: self.units.clone(),
            activations,
            is_trained_before: self.first_trained < self.units.start,
        })
    }

    /// Gives the next stage what it goes on with.
    pub(super) fn pass_on(&self, key: Key, activations: FloatTensor<B>) -> std::result::Result<(), Broken> {
        let to = self.worker(self.number + 1);
        self.send(Key { operation: Operation::Activations { to }, ..key }, to, activations)
    }

    /// The gradient of what was passed on, if it was and something that is trained has computed it.
    pub(super) fn gradient(&self, key: Key) -> std::result::Result<Option<FloatTensor<B>>, Broken> {
        let own = Key { operation: Operation::Gradient { to: self.everyone.rank() }, ..key };
        let wait = || waiting(Wait::Others, || self.receive(own, self.number + 1));
        let receive = || info_span!("wait for the stage behind").in_scope(wait);
        (!self.is_last() && self.first_trained < self.units.end).then(receive).transpose()
    }

    /// Gives the stage before the gradient of its activations.
    pub(super) fn pass_back(&self, key: Key, gradient: FloatTensor<B>) -> std::result::Result<(), Broken> {
        let to = self.worker(self.number - 1);
        self.send(Key { operation: Operation::Gradient { to }, ..key }, to, gradient)
    }

    /// The worker of this replica at `stage`.
    fn worker(&self, stage: usize) -> usize {
        stage * self.world.size + self.replica
    }
}

/// How many forward passes stage `number` of `stages` begins before its first backward pass. `is_alone` is whether
/// every process hosts one worker: then it holds few micro-batches.
pub fn ahead([number, stages]: [usize; 2], is_alone: bool, micro_batches: usize) -> usize {
    match stages {
        1 => 1,
        _ if is_alone => stages - number,
        _ => micro_batches,
    }
}

pub(super) fn first_trained<B: Backend, M: Module<B>>(units: &[Unit], model: &M) -> usize {
    trained_parameters(model).map(|tensor| unit_of(units, &tensor.name).unwrap_or(0)).min().unwrap_or(units.len())
}

/// The passes of a worker that begins `ahead` forward passes before its first backward pass.
pub fn turns(micro_batches: usize, ahead: usize) -> Vec<Turn> {
    let (mut turns, mut begun) = (Vec::new(), 0);
    for micro_batch in 0..micro_batches {
        let until = (micro_batch + ahead).min(micro_batches);
        turns.extend((begun..until).map(Turn::Forward));
        begun = until;
        turns.push(Turn::Backward(micro_batch));
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::Turn::{Backward, Forward};
    use super::*;

    #[test]
    fn a_worker_alone_in_its_process_holds_few_micro_batches() {
        assert_eq!(turns(2, 1), [Forward(0), Backward(0), Forward(1), Backward(1)]);
        assert_eq!(turns(3, 2), [Forward(0), Forward(1), Backward(0), Forward(2), Backward(1), Backward(2)]);
        assert_eq!(turns(2, 5), [Forward(0), Forward(1), Backward(0), Backward(1)]);
    }

    #[test]
    fn a_model_is_cut_where_its_most_expensive_stage_costs_least() {
        let resnet = [0.25, 2.0, 2.0, 1.5, 2.0, 1.5, 2.0, 1.5, 2.0, 0.05];
        assert!(cut(&resnet, 1, &[]).is_ok_and(|parts| parts.iter().eq([&(0..10)])));
        assert_eq!(cut(&resnet, 2, &[]).ok(), Some(vec![0..5, 5..10]));
        assert_eq!(cut(&resnet, 4, &[]).ok(), Some(vec![0..3, 3..5, 5..7, 7..10]));
        assert_eq!(cut(&[1.0, 1.0, 9.0], 2, &[]).ok(), Some(vec![0..2, 2..3]));
        assert_eq!(cut(&[1.0; 3], 3, &[]).ok(), Some(vec![0..1, 1..2, 2..3]));
        assert!(cut(&[1.0; 3], 4, &[]).is_err());
    }

    #[test]
    fn a_model_is_cut_where_asked_unless_a_stage_would_have_no_part() {
        assert_eq!(cut(&[1.0; 5], 3, &[1, 4]).ok(), Some(vec![0..1, 1..4, 4..5]));
        for (stages, points) in [(3, &[1][..]), (3, &[2, 2]), (3, &[3, 2]), (2, &[0]), (2, &[5]), (2, &[6])] {
            assert!(cut(&[1.0; 5], stages, points).is_err(), "{points:?}");
        }
    }
}
