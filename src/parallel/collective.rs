//! Collectives between replicas: in memory within a process (`local.rs`), over an engine between processes.
//!
//! A collective is matched by its [`Key`], never by the order of calls, which depends on the autodiff graph. Every call
//! has a time limit. When a replica is lost, all calls that wait for it, and all later ones, return the same verdict on
//! all replicas; a call whose replicas had all arrived returns its result.

use std::sync::Arc;
use std::time::Duration;

use super::engine::DeviceEngine;
use super::key::{Broken, Key};
use super::local::{Group, Message, PATIENCE};
use super::processes::Processes;
use crate::ops::statistics::{Combine, Part};

/// Makes the handles of the replicas of this process in a world of `size`, which may have several processes. `timeout`
/// limits the wait for the slowest of them.
pub fn local_group(size: usize, processes: Option<Processes>, timeout: Duration) -> Vec<Arc<Collective>> {
    let size = processes.as_ref().map_or(size, |processes| processes.hosted().len());
    let group = Arc::new(Group::new(size, processes, timeout));
    (0..size).map(|place| Arc::new(Collective { place, group: group.clone() })).collect()
}

/// One replica's handle on its group.
#[derive(Debug)]
pub struct Collective {
    /// Among the replicas of this process.
    place: usize,
    group: Arc<Group>,
}

impl Collective {
    /// This replica, from 0.
    pub fn rank(&self) -> usize {
        self.group.first() + self.place
    }

    pub fn size(&self) -> usize {
        self.group.processes.as_ref().map_or(self.group.size, Processes::replicas)
    }

    /// Combines the parts of all replicas of this process, in rank order; all get the same result.
    pub fn meet(&self, key: Key, part: Part, combine: &dyn Fn(Vec<Part>) -> Part) -> Result<Part, Broken> {
        let all = |parts: Vec<Message>| Ok(Message::Part(combine(parts.into_iter().map(Message::into_part).collect())));
        self.group.meet(self.place, key, Message::Part(part), all).map(Message::into_part)
    }

    /// As [`Collective::meet`], with the other processes, if there are any, and the time that their part may take. Where
    /// tensors go from device to device, the replicas of this device meet, and the others are the devices.
    pub(super) fn meet_processes(
        &self,
        key: Key,
        part: Part,
        combine: impl FnOnce(Vec<Part>, Option<&Processes>, Duration) -> Result<Part, Broken>,
    ) -> Result<Part, Broken> {
        let processes = self.device().or(self.group.processes.as_ref());
        let all = |parts: Vec<Message>| {
            let parts = parts.into_iter().map(Message::into_part).collect();
            combine(parts, processes, self.group.limit(key)).map(Message::Part)
        };
        let (hosted, first) = (processes.map_or(0..self.group.size, Processes::hosted), self.group.first());
        let members = hosted.start - first..hosted.end - first;
        self.group.meet_among(members, self.place, key, Message::Part(part), all).map(Message::into_part)
    }

    /// This replica's device among those of all processes, if tensors need not go through the host.
    fn device(&self) -> Option<&Processes> {
        self.group.processes.as_ref()?.devices.iter().find(|device| device.hosted().contains(&self.rank()))
    }

    /// The engine that takes tensors of this replica's device to the others, if they need not go through the host.
    pub fn devices(&self) -> Option<&dyn DeviceEngine> {
        self.device()?.tensors.as_deref()
    }

    /// Whether sums over processes are taken in the order of the tree.
    pub(super) fn is_ordered(&self) -> bool {
        self.group.processes.as_ref().is_none_or(|processes| processes.ordered)
    }

    /// The values of all replicas in rank order, equally many of each, as `combine` returns them; each process calls it
    /// once.
    pub fn all_gather(&self, key: Key, values: Vec<f64>, combine: Combine) -> Result<Arc<Vec<Vec<f64>>>, Broken> {
        let gather = |messages| Ok(Message::Gathered(Arc::new(combine(self.group.gather(key, messages)?))));
        match self.group.meet(self.place, key, Message::Values(values), gather)? {
            Message::Gathered(all) => Ok(all),
            _ => Ok(Arc::default()),
        }
    }

    /// Whether the replica `other` is in this process.
    pub fn is_here(&self, other: usize) -> bool {
        other.checked_sub(self.group.first()).is_some_and(|place| place < self.group.size)
    }

    /// Hands `part` to the replica of this process that `key` names.
    pub(super) fn post(&self, key: Key, part: Part) -> Result<(), Broken> {
        self.group.post(key, part)
    }

    pub(super) fn fetch(&self, key: Key) -> Result<Part, Broken> {
        self.group.fetch(key)
    }

    /// How long a replica may wait for the others.
    pub(super) fn limit(&self, key: Key) -> Duration {
        self.group.limit(key)
    }

    /// Sends bytes to replica `to`, which is in another process.
    pub(super) fn send(&self, key: Key, to: usize, bytes: &[u8]) -> Result<(), Broken> {
        self.processes().send(key, to, bytes, self.group.limit(key))
    }

    /// The bytes that replica `from`, which is in another process, sends to this one.
    pub(super) fn receive(&self, key: Key, from: usize) -> Result<Vec<u8>, Broken> {
        self.processes().receive(key, from, self.group.limit(key))
    }

    /// Asks replica `from`, which is in another process, for what it has to send under this key.
    pub(super) fn ask(&self, key: Key, from: usize) -> Result<(), Broken> {
        self.send(key, from, &[0])
    }

    /// Waits until replica `to` asks, which takes what others sent to it first.
    pub(super) fn asked(&self, key: Key, to: usize) -> Result<(), Broken> {
        self.processes().receive(key, to, PATIENCE * self.group.limit(key)).map(drop)
    }

    /// The way of tensors from replica `from` to `to`, of which one is in another process, if they need not go through the
    /// host.
    pub(super) fn wire(&self, ends @ [from, to]: [usize; 2]) -> Option<&Processes> {
        let is_between = self.is_here(from) != self.is_here(to);
        self.group.processes.as_ref().filter(|_| is_between)?.wire(ends)
    }

    fn processes(&self) -> &Processes {
        self.group.processes.as_ref().expect("there are other processes")
    }

    /// Returns when all replicas of this process have arrived.
    pub fn barrier(&self, key: Key) -> Result<(), Broken> {
        self.group.meet(self.place, key, Message::Nothing, |_| Ok(Message::Nothing)).map(|_| ())
    }

    /// Breaks the group, because this replica or another process failed. The first reason is kept.
    pub fn abort(&self, reason: Broken) {
        self.group.abort(reason);
    }

    /// How many replicas this process has.
    pub(super) fn here(&self) -> usize {
        self.group.size
    }

    /// Whether there are other processes, so that gradients should be sent early.
    pub fn is_distributed(&self) -> bool {
        self.group.processes.is_some()
    }

    /// Whether this is the first replica of its process, which reports for all of them.
    pub fn is_local_leader(&self) -> bool {
        self.place == 0
    }
}
