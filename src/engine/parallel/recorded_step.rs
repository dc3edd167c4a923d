//! A step of a single replica that records its steps; see `recording.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::Tensor;
use kiln_ops::{Graph, primitive, tensor};
use kiln_system::{Error, Result};
use tracing::{info_span, warn};

use super::outcome::Outcome;
use super::passes::Passes;
use super::recording::{Batch, Computed, Recording, State, Tried};
use super::remedy::words;
use super::replica::Flow;
use super::{Group, HostBackend, Replica, StepReport, Task};
use crate::nn::{TensorSet, counts, flat};
use crate::optim::norms;

/// Steps of a shape before the one that is recorded.
const BEFORE: usize = 3;

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// A step of a single replica, by `recording`.
    pub(super) fn recorded_step(
        &mut self,
        recording: &mut Recording<B, T>,
        group: &Group,
        report: StepReport,
    ) -> Result<(Option<StepReport>, Flow)> {
        let batch = self.next_batch()?;
        let (batch, fits) = recording.placed(&self.task, batch);
        self.rule.lock().announce(self.learner.lr_current(), &self.device);
        recording.steps += usize::from(fits);
        let Computed { sums, norm } = match (&mut recording.graph, &recording.computed) {
            (Some(graph), Some(computed)) if fits => {
                let again = &mut || self.again(group, &batch, computed);
                info_span!("replay").in_scope(|| graph.replay(again)).map_err(refused)?;
                computed.clone()
            }
            (Some(_), None) if fits && recording.steps > BEFORE => self.record(recording, group, &batch)?,
            _ => self.compute(group, batch)?,
        };
        let outcome = Outcome::new(report, sums, vec![norm], 1.0, true);
        let judged = self.judge(outcome)?;
        self.finish();
        Ok(judged)
    }

    /// What a step does on the device.
    fn compute(&mut self, group: &Group, batch: Batch<B, T>) -> Result<Computed<B>> {
        self.next = Some(batch);
        let Passes { sums, statistics, .. } = self.passes(group, 1.0 / group.samples() as f64)?;
        let gradients = self.packed_gradients();
        let norms = norms(&gradients);
        // A processor has that of each tensor.
        let norm = if norms.len() == 1 { norms[0].clone() } else { tensor(B::norm(primitive(Tensor::cat(norms, 0)))) };
        let gradients = self.clipped(gradients, vec![norm.clone()], None, 1.0);
        self.commit(gradients, statistics)?;
        Ok(Computed { sums, norm })
    }

    /// For a graph that records nothing: the same step, which leaves its results in `place`.
    fn again(&mut self, group: &Group, batch: &Batch<B, T>, place: &Computed<B>) {
        let computed = self.compute(group, batch.clone()).expect("a step that was done can be done again");
        for (place, values) in place.tensors().zip(computed.tensors()) {
            B::put(primitive(values.clone()), primitive(place.clone()));
        }
    }

    /// Does a step, records it, and goes back to do it once more by a replay.
    fn record(&mut self, recording: &mut Recording<B, T>, group: &Group, batch: &Batch<B, T>) -> Result<Computed<B>> {
        let (state, rule) = (self.changing(), self.rule.lock().copy());
        let before = state.copy();
        let computed = self.compute(group, batch.clone())?;
        let (after, wanted) = (state.copy(), state.checksum(&computed));
        state.set(&before);
        let mut graph = recording.graph.take().expect("there is a graph to record");
        // Who records nothing has done the step by that.
        let replayed = self.captured(graph.as_mut(), group, batch).and_then(|found| {
            state.set(&before);
            graph.replay(&mut || self.again(group, batch, &found)).map(|()| found)
        });
        let why = match replayed {
            Ok(found) if state.checksum(&found) == wanted => {
                recording.graph = Some(graph);
                recording.computed = Some(found.clone());
                return Ok(found);
            }
            Ok(_) => "a replayed step has other bits; --deterministic leaves out kernels whose bits vary".into(),
            Err(why) => why,
        };
        warn!("steps are not recorded: {why}");
        drop(self.gradients.take());
        *self.rule.lock() = rule;
        state.set(&after);
        Ok(computed)
    }

    fn captured(&mut self, graph: &mut dyn Graph, group: &Group, batch: &Batch<B, T>) -> Tried<Computed<B>> {
        // Nothing of before may be waited for while it records.
        B::sync(&self.device).map_err(|error| format!("{error:?}"))?;
        let mut computed = Err("nothing was computed".into());
        let recorded = graph.record(&mut || {
            let work = AssertUnwindSafe(|| self.compute(group, batch.clone()));
            computed = match catch_unwind(work) {
                Ok(computed) => computed.map_err(|error| error.to_string()),
                Err(panic) => Err(words(&*panic).into()),
            };
        });
        computed.and_then(|computed| recorded.map(|()| computed))
    }

    /// The tensors that a step changes, where they are.
    fn changing(&self) -> State<B> {
        let model = self.model();
        let mut floats = flat(&model, TensorSet::All);
        floats.extend(self.rule.lock().memory());
        State { floats, integers: counts(&model) }
    }
}

fn refused(why: String) -> Error {
    Error::Training(format!("a recorded step cannot be replayed: {why}; train with --cuda-graph off"))
}
