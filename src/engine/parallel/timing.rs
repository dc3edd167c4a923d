//! The time of each unit of a model on devices of this process.
//!
//! A thread for each device computes micro-batches as a worker does, unit by unit; all work at the same time, as in a
//! training, since devices may share a processor and its memory. As there, no backward pass runs during a forward pass:
//! see `passes.rs`.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Tensor, TensorMetadata};
use burn_train::TrainOutput;
use kiln_ops::primitive;
use kiln_system::Result;
use serde::{Deserialize, Serialize};

use super::collective::local_group;
use super::learner::LearningRate;
use super::replica::verdict;
use super::stage::first_trained;
use super::task::unit_of;
use super::{Collective, HostBackend, Key, Micro, ModelPart, Operation, Plan, Position, Recipe, Shard, Split, Task};
use crate::nn::{ForwardContext, TensorSet, flat, gradients_of, trained_parameters};

/// Micro-batches that count; one more comes before them.
const ROUNDS: usize = 5;
/// How long a device may be slower than the others.
const LIMIT: Duration = Duration::from_secs(600);

/// What a unit takes of a device, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Times {
    /// The forward pass of a micro-batch.
    pub forward: f64,
    /// The backward pass of a micro-batch.
    pub backward: f64,
    /// Its share of an update, by its trained parameters.
    pub update: f64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Timing {
    /// By device and unit: medians.
    pub times: Vec<Vec<Times>>,
    /// Bytes that each unit but the last passes on, for a micro-batch.
    pub passed: Vec<usize>,
}

/// Times the units of `model` on `devices`, all at the same time, with the batch size of `plan`.
///
/// # Errors
/// If a device is missing or a sample damaged.
pub fn time_units<B: HostBackend, T: Task<B>>(
    task: &Arc<T>,
    plan: &Arc<Plan>,
    model: &T::Model,
    devices: &[usize],
) -> Result<Timing> {
    let work = |place: usize, collective: Arc<Collective>, model: T::Model| {
        let group = collective.clone();
        let attempt = move || {
            let device = B::open(devices[place])?;
            let recipe = Recipe { task: task.clone(), rule: None, schedule: LearningRate::of_plan(plan) };
            Worker::<B, T> { task, plan, model: model.fork(&device), device, recipe, collective }.time()
        };
        let broken = |panic| Err(verdict(panic, place, "while it was timed"));
        let timed = || catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(broken);
        B::on_threads(plan.threads, devices.len(), timed).inspect_err(|error| group.abort(error.into()))
    };
    let group = local_group(devices.len(), None, LIMIT);
    let work = &work;
    let all: Vec<Result<_>> = std::thread::scope(|scope| {
        let start = |(place, collective)| {
            let model = model.clone();
            scope.spawn(move || work(place, collective, model))
        };
        let threads: Vec<_> = group.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a panic has become an error")).collect()
    });
    let mut timing = Timing::default();
    for (times, passed) in all.into_iter().collect::<Result<Vec<_>>>()? {
        timing.times.push(times);
        timing.passed = passed;
    }
    Ok(timing)
}

/// Bytes per second that go to the host and back to this device.
///
/// # Errors
/// If the device is missing.
pub fn time_copy<B: HostBackend>(device: usize) -> Result<f64> {
    /// 64 MiB.
    const FLOATS: usize = 1 << 24;
    let device = B::open(device)?;
    let tensor = Tensor::<B, 1>::ones([FLOATS], &device);
    let mut seconds = Vec::new();
    for _ in 0..ROUNDS {
        let (values, begin) = (primitive(tensor.clone()), Instant::now());
        let mut numbers = Vec::with_capacity(FLOATS);
        B::append_to(values, &mut numbers);
        let back = B::from_host(&numbers, &device);
        drop(B::sync(&device));
        seconds.push(begin.elapsed().as_secs_f64());
        drop(back);
    }
    Ok((FLOATS * size_of::<f32>()) as f64 / median(seconds))
}

struct Worker<'a, B: HostBackend, T: Task<B>> {
    task: &'a T,
    plan: &'a Plan,
    device: B::Device,
    recipe: Recipe<B, T>,
    model: T::Model,
    collective: Arc<Collective>,
}

impl<B: HostBackend, T: Task<B>> Worker<'_, B, T> {
    /// Runs `work` and waits for the device; with the seconds of both.
    fn timed<R>(&self, work: impl FnOnce() -> R) -> (R, f64) {
        // An error of the device is reported by the next read.
        drop(B::sync(&self.device));
        let begin = Instant::now();
        let result = work();
        drop(B::sync(&self.device));
        (result, begin.elapsed().as_secs_f64())
    }

    /// The times of all units, and what they pass on. One by one they take longer than together, since each begins and
    /// ends a pass of its own; so their times are those shares of the time of the whole model.
    fn time(&self) -> Result<(Vec<Times>, Vec<usize>)> {
        let units = self.task.units().len();
        let (alone, together) = ((0..units).map(|unit| unit..unit + 1).collect::<Vec<_>>(), 0..units);
        let (mut by_unit, mut whole, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (times, bytes) = self.round(2 * round, &alone)?;
            by_unit.push(times);
            whole.push(self.round(2 * round + 1, std::slice::from_ref(&together))?.0);
            passed = bytes;
        }
        let middle = |rounds: &[Vec<[f64; 2]>], part: usize| {
            [0, 1].map(|way| median(rounds[1..].iter().map(|times| times[part][way]).collect()))
        };
        let passes: Vec<[f64; 2]> = (0..units).map(|unit| middle(&by_unit, unit)).collect();
        let whole = middle(&whole, 0);
        let scale = [0, 1].map(|way| whole[way] / passes.iter().map(|pass| pass[way]).sum::<f64>());
        let (update, trained) = (self.update(), self.trained(units));
        let all = trained.iter().sum::<usize>().max(1) as f64;
        let begin = first_trained(&self.task.units(), &self.model);
        let times = passes.iter().zip(trained).enumerate().map(|(unit, (pass, trained))| {
            let [forward, backward] = [0, 1].map(|way| pass[way] * scale[way]);
            let is_again = self.plan.grad_checkpointing && (begin..units - 1).contains(&unit);
            let again = if is_again { forward } else { 0.0 };
            Times { forward, backward: backward + again, update: update * trained as f64 / all }
        });
        Ok((times.collect(), passed))
    }

    /// One micro-batch through `parts` of the model: the seconds of the forward and of the backward pass of each, and
    /// the bytes between them.
    fn round(&self, round: usize, parts: &[Range<usize>]) -> Result<(Vec<[f64; 2]>, Vec<usize>)> {
        let meet = |operation| self.collective.barrier(Key { step: round, micro_batch: 0, operation });
        let group = self.plan.sampler.group(0, 0);
        let first_trained = first_trained(&self.task.units(), &self.model);
        let (mut begun, mut times, mut passed, mut activations) = (Vec::new(), Vec::new(), Vec::new(), None);
        for units in parts {
            let shard = Shard { targets_only: units.start > 0, ..self.plan.shard(&group, 0, 0, 0) };
            let items = self.task.fetch(Split::Training, &shard.ids)?;
            let input = self.task.upload(self.task.prepare(Split::Training, items, &shard)?, &self.device);
            let context = ForwardContext::local().in_precision(self.plan.precision);
            let weight = 1.0 / shard.ids.len() as f64;
            let micro = Micro { input, samples: shard.samples(), weight, context, probe: None };
            let is_trained_before = first_trained < units.start;
            let part = ModelPart { units: units.clone(), activations: activations.take(), is_trained_before };
            // Fresh leaves before every forward.
            let (model, start) = (self.model.clone().fork(&self.device), Position::default());
            let model = self.recipe.learner(self.plan, model, &start, None).0.model();
            let (pending, seconds) = self.timed(|| model.clone().forward(micro, part));
            activations = pending.activations();
            passed.extend(activations.iter().map(|values| values.shape().num_elements() * size_of::<f32>()));
            times.push([seconds, 0.0]);
            begun.push((model, pending));
        }
        meet(Operation::ForwardDone)?;
        let mut gradient = None;
        for ((model, pending), times) in begun.into_iter().zip(&mut times).rev() {
            gradient.take().into_iter().for_each(|gradient| pending.set_gradient(gradient));
            let (output, seconds) = self.timed(|| burn_train::TrainStep::step(&model, pending));
            let TrainOutput { item, .. } = output;
            (gradient, times[1]) = (item.gradient, seconds);
        }
        meet(Operation::BackwardDone)?;
        Ok((times, passed))
    }

    /// Seconds of an update of the whole model, by gradients as large as the weights.
    fn update(&self) -> f64 {
        let mut learner = self.recipe.learner(self.plan, self.model.clone(), &Position::default(), None).0;
        let mut seconds = Vec::new();
        for _ in 0..ROUNDS {
            let model = learner.model();
            let weights = flat(&model, TensorSet::Trained).into_iter();
            let gradients = gradients_of(&model, 0, weights.map(|weights| weights.zeros_like()).collect());
            learner.lr_step();
            seconds.push(self.timed(|| learner.optimizer_step(gradients)).1);
        }
        median(seconds)
    }

    fn trained(&self, units: usize) -> Vec<usize> {
        let (mut trained, all) = (vec![0; units], self.task.units());
        for tensor in trained_parameters(&self.model) {
            let unit = unit_of(&all, &tensor.name);
            unit.into_iter().for_each(|unit| trained[unit] += tensor.shape.iter().product::<usize>());
        }
        trained
    }
}

/// The middle of some numbers; the upper one of two.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}
