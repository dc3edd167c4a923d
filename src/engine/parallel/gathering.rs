//! The state of a model in parts, put together on one worker: to be saved, or for the next generation of an elastic
//! run.

use std::path::Path;
use std::sync::Arc;

use kiln_ops::release_freed;
use kiln_system::Result;

use super::{HostBackend, Key, Operation, Stage, TrainingState};
use crate::state::{HostTensor, StateDict, from_safetensors, to_safetensors};

/// The state of a worker's part of the model, on its device until it is read.
pub(super) struct StatePart<'a> {
    pub(super) modules: Vec<String>,
    pub(super) read: &'a dyn Fn(Option<&str>) -> TrainingState,
}

impl<B: HostBackend> Stage<B> {
    /// The whole state on worker `root`, the first of its process, from the parts of those that have one; `None` on the
    /// others. Called by all. The first worker of each process sends the parts of the others there: parts that several
    /// workers sent side by side could wait for each other.
    pub(super) fn gathered(&self, key: Key, root: usize, own: Option<StatePart>) -> Result<Option<TrainingState>> {
        let (key, rank) = (|worker| Key { operation: Operation::State { worker }, ..key }, self.everyone.rank());
        let blocks = &self.world.blocks;
        let here = blocks.iter().find(|block| block.contains(&rank)).expect("each worker has a process").clone();
        if here.start != rank {
            self.everyone.threads.post(key(rank), Arc::new(own.map(|own| (own.read)(None))))?;
            return Ok(None);
        }
        // The room that activations had is in pieces too small for kernels, and the next step is given it anew.
        release_freed();
        let others = here.skip(1).map(|worker| -> Result<Option<TrainingState>> {
            let part = self.everyone.threads.fetch(key(worker))?.downcast::<Option<TrainingState>>();
            Ok(Arc::unwrap_or_clone(part.expect("a worker hands over its state")))
        });
        if rank != root {
            // One module at a time, since models are large.
            for module in own.iter().flat_map(|own| &own.modules) {
                let read = |own: &StatePart| (own.read)(Some(module));
                self.send_state(key(rank), root, own.as_ref().map(read).unwrap_or_default())?;
            }
            for part in others {
                self.send_state(key(rank), root, part?.unwrap_or_default())?;
            }
            self.everyone.send(key(rank), root, &to_safetensors(&StateDict::new(), &[]))?;
            return Ok(None);
        }
        let mut whole = own.map(|own| (own.read)(None)).unwrap_or_default();
        for part in others {
            part?.into_iter().for_each(|part| whole.join(part));
        }
        for sender in blocks.iter().map(|block| block.start).filter(|start| *start != root) {
            self.receive_state(key(sender), sender, &mut whole)?;
        }
        Ok(Some(whole))
    }

    /// Sends tensors of a state to worker `to`, one at a time; nothing follows the last one.
    fn send_state(&self, key: Key, to: usize, state: TrainingState) -> Result<()> {
        for tensor in named(state) {
            self.everyone.send(key, to, &to_safetensors(&StateDict::from([tensor]), &[]))?;
        }
        Ok(())
    }

    /// Adds what another process sends.
    fn receive_state(&self, key: Key, from: usize, whole: &mut TrainingState) -> Result<()> {
        loop {
            let bytes = self.everyone.receive(key, from)?;
            let (part, _) = from_safetensors(&bytes, Path::new("the state of another worker"))?;
            if part.is_empty() {
                return Ok(());
            }
            whole.extend(part.into_iter());
        }
    }
}

/// The parts of a state, in the names of their tensors on the way.
const PARTS: [&str; 3] = ["weights.", "optimizer.", "average."];

fn named(state: TrainingState) -> impl Iterator<Item = (String, HostTensor)> {
    let parts = [state.weights, state.optimizer, state.average.unwrap_or_default()].into_iter().zip(PARTS);
    parts.flat_map(|(part, of)| part.into_iter().map(move |(name, tensor)| (format!("{of}{name}"), tensor)))
}

impl TrainingState {
    /// Adds tensors of another worker.
    fn extend(&mut self, tensors: impl Iterator<Item = (String, HostTensor)>) {
        for (name, tensor) in tensors {
            let own = PARTS.iter().zip(0..).find_map(|(of, part)| Some((name.strip_prefix(of)?, part)));
            let Some((name, part)) = own else { continue };
            let part = match part {
                0 => &mut self.weights,
                1 => &mut self.optimizer,
                _ => self.average.get_or_insert_default(),
            };
            part.insert(name.into(), tensor);
        }
    }
}
