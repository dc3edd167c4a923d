//! A step of a replica that records its steps; see `recording.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::Tensor;
use kiln_ops::{Graph, primitive, tensor};
use kiln_system::{Error, Result};
use tracing::{info_span, warn};

use super::outcome::{Outcome, Sums};
use super::passes::Passes;
use super::recording::{Batch, Norm, Passed, Places, Recording, Reduced, Results, State, Tried};
use super::remedy::words;
use super::replica::Flow;
use super::{Group, HostBackend, Key, Operation, Replica, StepReport, Task};
use crate::nn::{TensorSet, counts, flat};
use crate::optim::norms;

/// Steps of a shape before the one that is recorded.
const BEFORE: usize = 3;

type Done<B> = (Vec<Sums<B>>, Norm<B>);

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    pub(super) fn recorded_step(
        &mut self,
        recording: &mut Recording<B, T>,
        group: &Group,
        report: StepReport,
    ) -> Result<(Option<StepReport>, Flow)> {
        let batch = self.next_batch()?;
        let (batch, fits) = recording.placed(&self.task, batch, group.shares(0, self.collective.size()));
        self.rule.lock().announce(self.learner.lr_current(), &self.device);
        recording.steps += usize::from(fits);
        let (sums, Norm(norm)) = match (&mut recording.graphs, &recording.places) {
            (Some(graphs), Some(places)) if fits => self.replay(graphs, places, group, &batch)?,
            (Some(_), None) if fits && recording.steps > BEFORE => self.record(recording, group, &batch)?,
            _ => {
                let passed = self.pass(group, &batch)?;
                let (sums, reduced) = (passed.sums.clone(), self.reduce(passed, group)?);
                (sums, self.commit_reduced(&reduced)?)
            }
        };
        let outcome = Outcome::new(report, sums, vec![norm], 1.0, true);
        let judged = self.judge(outcome)?;
        self.finish();
        Ok(judged)
    }

    /// The first part of a step, which changes no state.
    fn pass(&mut self, group: &Group, batch: &Batch<B, T>) -> Result<Passed<B>> {
        self.next = Some(batch.clone());
        let Passes { sums, statistics, .. } = self.passes(group, 1.0 / group.samples() as f64)?;
        Ok(Passed { gradients: self.packed_gradients(), sums, statistics })
    }

    /// What replicas exchange, which is not recorded.
    fn reduce(&mut self, passed: Passed<B>, group: &Group) -> Result<Reduced<B>> {
        let gradients = self.reduction.sum(self.key(Operation::Counts), passed.gradients, None)?;
        Ok(Reduced { gradients, statistics: self.mean_statistics(passed.statistics, group)? })
    }

    /// The last part.
    fn commit_reduced(&mut self, reduced: &Reduced<B>) -> Result<Norm<B>> {
        let Reduced { gradients, statistics } = reduced.clone();
        let norms = norms(&gradients);
        // A processor has that of each tensor.
        let norm = if norms.len() == 1 { norms[0].clone() } else { tensor(B::norm(primitive(Tensor::cat(norms, 0)))) };
        let gradients = self.clipped(gradients, vec![norm.clone()], None, 1.0);
        self.commit(gradients, statistics)?;
        Ok(Norm(norm))
    }

    fn replay(
        &mut self,
        [passes, update]: &mut [Box<dyn Graph>; 2],
        places: &Places<B>,
        group: &Group,
        batch: &Batch<B, T>,
    ) -> Result<Done<B>> {
        let Places { passed, reduced, norm } = places;
        let replay = |graph: &mut dyn Graph, work: &mut dyn FnMut()| {
            info_span!("replay").in_scope(|| graph.replay(work)).map_err(refused)
        };
        replay(passes.as_mut(), &mut || again(passed, self.pass(group, batch)))?;
        reduced.set(&self.reduce(passed.clone(), group)?);
        replay(update.as_mut(), &mut || again(norm, self.commit_reduced(reduced)))?;
        Ok((passed.sums.clone(), norm.clone()))
    }

    /// A step whose parts are both recorded.
    fn record(&mut self, recording: &mut Recording<B, T>, group: &Group, batch: &Batch<B, T>) -> Result<Done<B>> {
        let [mut passes, mut update] = recording.graphs.take().expect("there are graphs to record");
        let nothing = State { floats: Vec::new(), integers: Vec::new() };
        let (passed, is_replayed) =
            self.recorded(passes.as_mut(), 0, nothing, &mut |replica| replica.pass(group, batch))?;
        let reduced = self.reduce(passed.clone(), group)?;
        let sums = passed.sums.clone();
        if !is_replayed {
            return Ok((sums, self.commit_reduced(&reduced)?));
        }
        let reduced = if self.collective.size() > 1 { reduced.owned() } else { reduced };
        let state = self.changing();
        let (norm, is_replayed) =
            self.recorded(update.as_mut(), 1, state, &mut |replica| replica.commit_reduced(&reduced))?;
        if is_replayed {
            recording.graphs = Some([passes, update]);
            recording.places = Some(Places { passed, reduced, norm: norm.clone() });
        }
        Ok((sums, norm))
    }

    /// Does `work`, which changes `state`, records it, and goes back to do it once more by a replay. Returns what it
    /// computed, and whether that is where replays will leave it: on all replicas or on none.
    fn recorded<R: Results<B>>(
        &mut self,
        graph: &mut dyn Graph,
        part: usize,
        state: State<B>,
        work: &mut dyn FnMut(&mut Self) -> Result<R>,
    ) -> Result<(R, bool)> {
        let (before, rule) = (state.copy(), self.rule.lock().copy());
        let computed = work(self)?;
        let (after, wanted) = (state.copy(), state.checksum(&computed));
        state.set(&before);
        let other = || Err("another replica cannot record them".into());
        // While a replica records, nothing queued before may be waited for, nor may others wait for its device.
        let synced = B::sync(&self.device).map_err(|error| format!("{error:?}"));
        let captured = if self.all(synced.is_ok(), 3 * part)? {
            self.captured(graph, work)
        } else {
            synced.and_then(|()| other())
        };
        // Who replays alone would not come to where the passes of the others meet.
        let replayed = if self.all(captured.is_ok(), 3 * part + 1)? {
            captured.and_then(|found| {
                // Who records nothing has done the work by that.
                state.set(&before);
                graph.replay(&mut || again(&found, work(self))).map(|()| found)
            })
        } else {
            captured.and_then(|_| other())
        };
        let replayed = replayed.and_then(|found| {
            let why = "a replayed step has other bits; --deterministic leaves out kernels whose bits vary";
            if state.checksum(&found) == wanted { Ok(found) } else { Err(why.into()) }
        });
        if self.all(replayed.is_ok(), 3 * part + 2)?
            && let Ok(found) = replayed
        {
            return Ok((found, true));
        }
        replayed.err().into_iter().for_each(|why: String| warn!("steps are not recorded: {why}"));
        drop(self.gradients.take());
        *self.rule.lock() = rule;
        state.set(&after);
        Ok((computed, false))
    }

    /// Records `work`. If the graph refuses before, it is done all the same, as other replicas may meet this one in it.
    fn captured<R>(&mut self, graph: &mut dyn Graph, work: &mut dyn FnMut(&mut Self) -> Result<R>) -> Tried<R> {
        let mut computed = None;
        let recorded = graph.record(&mut || {
            computed = Some(match catch_unwind(AssertUnwindSafe(|| work(self))) {
                Ok(computed) => computed.map_err(|error| error.to_string()),
                Err(panic) => Err(words(&*panic).into()),
            });
        });
        let computed = match computed {
            Some(computed) => computed,
            None => work(self).map_err(|error| error.to_string()),
        };
        recorded.and(computed)
    }

    /// Whether this holds on all replicas; `number` is that of the question in this step.
    fn all(&self, holds: bool, number: usize) -> Result<bool> {
        let key = Key { micro_batch: number, ..self.key(Operation::Recording) };
        let all = self.collective.all_gather(key, vec![f64::from(u8::from(holds))], |all| all)?;
        Ok(all.iter().flatten().all(|holds| *holds > 0.0))
    }

    /// The tensors that an update changes, where they are.
    fn changing(&self) -> State<B> {
        let model = self.model();
        let mut floats = flat(&model, TensorSet::All);
        floats.extend(self.rule.lock().memory());
        State { floats, integers: counts(&model) }
    }
}

/// For a graph that records nothing: what the same work computed, in its place.
fn again<B: HostBackend, R: Results<B>>(place: &R, computed: Result<R>) {
    place.set(&computed.expect("work that was done can be done again"));
}

fn refused(why: String) -> Error {
    Error::Training(format!("a recorded step cannot be replayed: {why}; train with --cuda-graph off"))
}
