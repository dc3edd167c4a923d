//! What a run of fixed membership needs from its other processes, as a trait that a single process implements too.

use std::time::Duration;

use kiln_engine::parallel::nccl::Transport;
use kiln_engine::parallel::{PATIENCE, Processes, World};
use kiln_system::Result;

use crate::config::ParallelConfig;

pub trait FixedMembership: Send + Sync {
    /// Which process hosts which replicas.
    fn world(&self) -> &World;

    /// The machine of each process; empty if there is one process.
    fn hosts(&self) -> Vec<String>;

    /// How many of the processes run on this machine.
    fn local_processes(&self) -> usize;

    /// Fails unless `value` is the same on all processes; `what` names it, as in `fingerprint of the images`. A single
    /// process does not compute it.
    fn agree(&self, what: &str, value: &dyn Fn() -> String) -> Result<()>;

    /// The `value` of every process, in the order of their ranks; `what` names it.
    fn gather(&self, what: &str, value: String) -> Result<Vec<String>>;

    /// Connects the processes of `world`, the one that is trained, if there are several, and devices that do not meet
    /// in memory; `ordered` asks for sums in the order of the tree, `transport` says by which engine tensors travel.
    fn connect(&self, world: &World, ordered: bool, transport: &Transport) -> Result<Option<Processes>>;

    /// On rank 0, announces that the run's files are complete; on other ranks, waits for that.
    fn complete(&self) -> Result<()>;

    /// Leaves the others: in good order, or because of `failure`, which they are told.
    fn leave(&self, failure: Option<&str>);
}

struct SingleProcess {
    world: World,
    /// How long its devices may take to meet.
    limit: Duration,
}

impl FixedMembership for SingleProcess {
    fn world(&self) -> &World {
        &self.world
    }

    fn hosts(&self) -> Vec<String> {
        Vec::new()
    }

    fn local_processes(&self) -> usize {
        1
    }

    fn agree(&self, _what: &str, _value: &dyn Fn() -> String) -> Result<()> {
        Ok(())
    }

    fn gather(&self, _what: &str, value: String) -> Result<Vec<String>> {
        Ok(vec![value])
    }

    fn connect(&self, world: &World, _ordered: bool, transport: &Transport) -> Result<Option<Processes>> {
        transport.connect_alone(world, self.limit)
    }

    fn complete(&self) -> Result<()> {
        Ok(())
    }

    fn leave(&self, _failure: Option<&str>) {}
}

pub fn alone(parallel: &ParallelConfig) -> Result<Box<dyn FixedMembership>> {
    let world = parallel.world(vec![parallel.gpu_ids.len()])?;
    Ok(Box::new(SingleProcess { world, limit: parallel.limit() * PATIENCE }))
}
