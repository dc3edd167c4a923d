//! Looks every few seconds at how long replicas wait for each other: makes a record of it, and a line if one is slow.

use std::collections::HashSet;
use std::ops::Range;

use kiln_engine::parallel::{StepReport, World};
use kiln_membership::MemberStatus;
use kiln_system::printable;

use crate::metrics::stragglers::Stragglers;
use crate::metrics::{Cause, MemberRecord, ReplicaRecord, ReplicasRecord};

/// Seconds between two looks.
const PAUSE: f64 = 5.0;

/// The workers of a process, and its machine.
type Place = (Range<usize>, String);

pub(super) struct Watch {
    stragglers: Stragglers,
    /// By process; in an elastic run its members are asked instead.
    places: Vec<Place>,
    next: f64,
    /// The workers of this process.
    hosted: Range<usize>,
    /// Seconds that others waited for this process, which is as slow as its slowest worker: in the minute before the last
    /// look, and since the beginning.
    pub(super) own: [f64; 2],
}

impl Watch {
    /// Over the workers of `world`, whose processes are on these machines.
    pub(super) fn new(world: &World, hosts: Vec<String>) -> Self {
        let places = world.blocks.iter().cloned().zip(hosts).collect();
        let (stragglers, hosted) = (Stragglers::new(world.size), world.hosted());
        Self { stragglers, places, next: 0.0, hosted, own: [0.0; 2] }
    }

    /// For another generation, in which this process has the workers `hosted`.
    pub(super) fn restart(&mut self, hosted: Range<usize>) {
        (self.stragglers, self.hosted) = (Stragglers::new(self.stragglers.replicas), hosted);
    }

    /// Takes a step that ended at `now`; returns whether it is time to look.
    pub(super) fn mark(&mut self, now: f64, report: &StepReport) -> bool {
        if !report.work.is_empty() {
            self.stragglers.mark(now, report.step, &report.work);
        }
        now >= self.next
    }

    /// What is known after `step`, and a line for each replica that has become slow; none if nothing was measured.
    pub(super) fn look(
        &mut self,
        now: f64,
        step: usize,
        members: &[MemberStatus],
    ) -> Option<(ReplicasRecord, Vec<String>)> {
        self.next = now + PAUSE;
        let (mut replicas, found) = self.stragglers.look(now);
        let own = replicas.iter().take(self.hosted.end).skip(self.hosted.start);
        self.own = own.fold([0.0; 2], |[minute, all], it| [it.waited_minute.max(minute), it.waited.max(all)]);
        let of_members = members.iter().filter(|it| it.has_part()).map(|it| (it.replicas.clone(), it.host.clone()));
        let of_members: Vec<Place> = of_members.collect();
        let places = if members.is_empty() { &self.places } else { &of_members };
        for (worker, record) in replicas.iter_mut().enumerate() {
            let process = places.iter().position(|(workers, _)| workers.contains(&worker));
            (record.process, record.host) = process.map_or_else(Default::default, |it| (it, places[it].1.clone()));
        }
        let spots: HashSet<_> = replicas.iter().map(|it| (it.process, it.device)).collect();
        let is_whole = replicas.len() == self.stragglers.replicas;
        let can_move = is_whole && (2..replicas.len()).contains(&spots.len());
        let lines = found.iter().map(|(worker, factor)| line(&replicas[*worker], *factor, can_move)).collect();
        let members = members.iter().map(member).collect();
        (!replicas.is_empty()).then_some((ReplicasRecord { step, replicas, members, seconds: now }, lines))
    }
}

/// `can_move` says that a device may have fewer replicas, and others more.
fn line(it: &ReplicaRecord, factor: f64, can_move: bool) -> String {
    let host = if it.host.is_empty() { String::new() } else { format!("host {}, ", printable(&it.host)) };
    let (name, device, waited) = (it.name(), it.device, it.waited_minute);
    let did = if it.slow == Some(Cause::Network) { "worked and sent" } else { "worked" };
    let cause = match it.slow {
        Some(Cause::Loader) => "it waits for its loader: give its process more --threads, or a nearer --data-dir",
        Some(Cause::Network) => {
            "its data takes longer to reach the others: look at the network between that host and them, or send less with \
             --reduce-precision bf16"
        }
        _ if can_move => {
            "it waits for its device: look there for other programs, heat and a lower clock, or use \
             --replicas-per-device auto"
        }
        _ => "it waits for its device: look there for other programs, heat and a lower clock",
    };
    format!(
        "warning: {name} ({host}device {device}) has {did} {factor:.1} times as long as the median replica for a minute, \
         in which others waited {waited:.0} s for it; {cause}"
    )
}

fn member(it: &MemberStatus) -> MemberRecord {
    let does = match it.replicas.len() {
        _ if it.draining => "leaves".into(),
        0 => "is in reserve".into(),
        1 => format!("computes replica {}", it.replicas.start),
        _ => format!("computes replicas {} to {}", it.replicas.start, it.replicas.end - 1),
    };
    MemberRecord { host: it.host.clone(), process: it.process, does }
}
