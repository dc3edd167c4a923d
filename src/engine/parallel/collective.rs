//! Collectives between replicas: in memory within a process (`threads.rs`), over an engine between processes.
//!
//! A collective is matched by its [`Key`], never by the order of calls, which depends on the autodiff graph. Every call
//! has a time limit. When a replica is lost, all calls that wait for it, and all later ones, return the same verdict on
//! all replicas; a call whose replicas had all arrived returns its result.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kiln_ops::statistics::{Combine, Payload};

use super::threads::{PATIENCE, Threads};
use super::{Broken, DeviceEngine, Key, Peers, Processes, Wait, waiting};

/// Makes the handles of the replicas of this process in a world of `size`, which may have several processes. `timeout`
/// limits the wait for the slowest of them.
pub fn local_group(size: usize, processes: Option<Processes>, timeout: Duration) -> Vec<Arc<Collective>> {
    let ranks = processes.as_ref().map_or(0..size, |processes| processes.peers.hosted());
    let (threads, processes) = (Arc::new(Threads::new(ranks.clone(), timeout)), processes.map(Arc::new));
    let handle = |rank| Arc::new(Collective { rank, threads: threads.clone(), processes: processes.clone() });
    ranks.map(handle).collect()
}

/// One replica's handle on its group: the replicas of its process, and the other processes if there are any.
pub struct Collective {
    rank: usize,
    /// The replicas of this process.
    pub(super) threads: Arc<Threads>,
    processes: Option<Arc<Processes>>,
}

impl Collective {
    /// This replica, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.peers().map_or(self.threads.ranks.len(), Peers::replicas)
    }

    /// Combines the parts of all replicas of this process, in rank order; all get the same result.
    pub fn meet(&self, key: Key, part: Payload, combine: &dyn Fn(Vec<Payload>) -> Payload) -> Result<Payload, Broken> {
        self.wait_for(self.threads.ranks.clone(), key, part, |parts| Ok(combine(parts)))
    }

    /// Meets the replicas `members` of this process.
    fn wait_for(
        &self,
        members: Range<usize>,
        key: Key,
        part: Payload,
        combine: impl FnOnce(Vec<Payload>) -> Result<Payload, Broken>,
    ) -> Result<Payload, Broken> {
        waiting(Wait::Others, || self.threads.meet(members, self.rank, key, part, combine))
    }

    /// As [`Collective::meet`], with the other processes, if there are any, and the time that their part may take.
    /// Where tensors go from device to device, the replicas of this device meet, and the others are the devices.
    pub(super) fn meet_processes(
        &self,
        key: Key,
        part: Payload,
        combine: impl FnOnce(Vec<Payload>, Option<&Peers>, Duration) -> Result<Payload, Broken>,
    ) -> Result<Payload, Broken> {
        let peers = self.device().or(self.peers());
        let members = peers.map_or(self.threads.ranks.clone(), Peers::hosted);
        let all = |parts| combine(parts, peers, self.threads.limit(key));
        self.wait_for(members, key, part, all)
    }

    fn peers(&self) -> Option<&Peers> {
        self.processes.as_ref().map(|processes| &processes.peers)
    }

    /// See [`Engine::sending`](super::engine::Engine::sending); none without other processes.
    pub(super) fn sending(&self) -> Vec<Duration> {
        self.peers().map_or_else(Vec::new, Peers::sending)
    }

    /// This replica's device among those of all processes, if tensors need not go through the host.
    fn device(&self) -> Option<&Peers> {
        self.processes.as_ref()?.devices.iter().find(|device| device.hosted().contains(&self.rank))
    }

    /// The engine that takes tensors of this replica's device to the others, if they need not go through the host.
    pub fn devices(&self) -> Option<&dyn DeviceEngine> {
        self.device()?.tensors.as_deref()
    }

    /// Whether sums over processes are taken in the order of the tree.
    pub(super) fn is_ordered(&self) -> bool {
        self.peers().is_none_or(|peers| peers.ordered)
    }

    /// The values of all replicas in rank order, equally many of each, as `combine` returns them; each process calls it
    /// once.
    pub fn all_gather(&self, key: Key, values: Vec<f64>, combine: Combine) -> Result<Arc<Vec<Vec<f64>>>, Broken> {
        let gather = |parts: Vec<Payload>| {
            let values =
                |part: Payload| part.downcast::<Vec<f64>>().map(Arc::unwrap_or_clone).expect("all bring values");
            let own: Vec<Vec<f64>> = parts.into_iter().map(values).collect();
            let length = own[0].len();
            if own.iter().any(|values| values.len() != length) {
                let unequal = format!("replicas brought different numbers of values to the {key}");
                return Err(Broken::Replica(unequal));
            }
            let Some(peers) = self.peers() else { return Ok(Arc::new(combine(own)) as Payload) };
            let all = peers.gather_replicas(key, &own.concat(), length, self.threads.limit(key))?;
            let of = |replica| all[replica * length..][..length].to_vec();
            Ok(Arc::new(combine((0..peers.replicas()).map(of).collect())))
        };
        let all = self.wait_for(self.threads.ranks.clone(), key, Arc::new(values), gather)?;
        Ok(all.downcast().expect("all get values"))
    }

    /// Whether the replica `other` is in this process.
    pub fn is_here(&self, other: usize) -> bool {
        self.threads.ranks.contains(&other)
    }

    /// Sends bytes to replica `to`, which is in another process.
    pub(super) fn send(&self, key: Key, to: usize, bytes: &[u8]) -> Result<(), Broken> {
        self.others().send(key, to, bytes, self.threads.limit(key))
    }

    /// The bytes that replica `from`, which is in another process, sends to this one.
    pub(super) fn receive(&self, key: Key, from: usize) -> Result<Vec<u8>, Broken> {
        self.others().receive(key, from, self.threads.limit(key))
    }

    /// Waits until replica `to` asks for what this one sends, by a message; it takes what others sent to it first.
    pub(super) fn asked(&self, key: Key, to: usize) -> Result<(), Broken> {
        self.others().receive(key, to, PATIENCE * self.threads.limit(key)).map(drop)
    }

    /// The way of tensors from replica `from` to `to`, of which one is in another process, if they need not go through
    /// the host.
    pub(super) fn wire(&self, ends @ [from, to]: [usize; 2]) -> Option<&Peers> {
        let is_between = self.is_here(from) != self.is_here(to);
        self.processes.as_ref().filter(|_| is_between)?.wires.get(&ends)
    }

    fn others(&self) -> &Peers {
        self.peers().expect("there are other processes")
    }

    /// Returns when all replicas of this process have arrived.
    pub fn barrier(&self, key: Key) -> Result<(), Broken> {
        let nothing: Payload = Arc::new(());
        self.meet(key, nothing.clone(), &|_| nothing.clone()).map(drop)
    }

    /// Breaks the group, because this replica or another process failed. The first reason is kept.
    pub fn abort(&self, reason: Broken) {
        self.threads.abort(reason);
        // This process will not take part in the collectives that other processes wait for.
        self.processes.iter().for_each(|processes| processes.close());
    }

    /// Whether there are other processes, so that gradients should be sent early.
    pub fn is_distributed(&self) -> bool {
        self.processes.is_some()
    }

    /// Whether this is the first replica of its process, which reports for all of them.
    pub fn is_local_leader(&self) -> bool {
        self.rank == self.threads.ranks.start
    }
}
