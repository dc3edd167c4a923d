//! What is known of a model and its devices, what a placement must not change, and every way to cut a model into
//! stages.

use std::collections::BTreeMap;
use std::ops::Range;

use kiln_engine::parallel::{Times, World};
use kiln_membership::{Speed, by_speed};
use serde::{Deserialize, Serialize};

/// The memory of a unit of a model, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Unit {
    /// Weights, gradients, the optimizer's state and averages.
    pub state: f64,
    /// Bytes of the gradients, which replicas exchange.
    pub gradients: f64,
    /// Activations of a micro-batch that the backward pass needs.
    pub kept: f64,
    /// Activations that the backward pass computes again; those of one unit at a time.
    pub again: f64,
    /// The output for the next unit, for a micro-batch; its gradient is as large.
    pub passed: f64,
}

/// The memory of the devices in bytes, infinite if unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct Room {
    /// Memory of each device.
    pub each: Vec<f64>,
    /// Memory of all devices together, if they share it.
    pub all: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// In the order of the forward pass.
    pub units: Vec<Unit>,
    /// How many devices there are. They take workers in their order, one each.
    pub devices: usize,
    /// Times by the number of workers that work at the same time, device and unit; missing numbers use the next larger
    /// one.
    pub times: BTreeMap<usize, Vec<Vec<Times>>>,
    /// Whether each device has its own process.
    pub in_processes: bool,
    /// Whether the replicas of a process part the sum of gradients and the update.
    pub parts_update: bool,
    /// Bytes per second between two devices.
    pub link: f64,
    pub room: Room,
}

impl Measured {
    /// The times by device and unit while `workers` work.
    pub(super) fn times(&self, workers: usize) -> &[Vec<Times>] {
        let next = self.times.range(workers..).next().or(self.times.last_key_value());
        next.map_or(&[], |(_, times)| times)
    }

    /// How many of `replicas` replicas each device hosts so that the slowest one is done first; `None` if that is equally
    /// many, or if not all devices were timed together.
    pub(super) fn shares(&self, replicas: usize) -> Option<Vec<usize>> {
        let seconds = |units: &Vec<Times>| units.iter().map(|it| it.forward + it.backward).sum::<f64>();
        let speed = |units: &Vec<Times>| Speed { devices: 1, nanoseconds: (1e9 * seconds(units)) as u64 };
        let speeds: Vec<Speed> = self.times(self.devices).iter().map(speed).collect();
        if speeds.len() != self.devices {
            return None;
        }
        let even = World::counts(replicas, self.devices);
        let shares = by_speed(replicas, &speeds, &even).unwrap_or(even);
        let is_uneven = shares.iter().any(|share| *share != shares[0]);
        is_uneven.then_some(shares)
    }
}

/// What all placements have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experiment {
    /// Images of a micro-batch of a replica.
    pub batch_size: usize,
    /// Micro-batches of a step, of all replicas together.
    pub micro_batches: usize,
    /// How many replicas there are; `None` for every number that divides the micro-batches.
    pub replicas: Option<usize>,
    /// Whether no device may be idle.
    pub uses_all: bool,
}

impl Experiment {
    /// The numbers of replicas and stages to compare, fewer first.
    pub fn shapes(&self, devices: usize, units: usize) -> Vec<[usize; 2]> {
        let replicas = match self.replicas {
            Some(replicas) => replicas..replicas + 1,
            None => 1..devices.min(self.micro_batches) + 1,
        };
        let replicas = replicas.filter(|replicas| self.micro_batches.is_multiple_of(*replicas));
        let shapes = replicas.flat_map(|replicas| (1..=units.min(devices / replicas)).map(move |it| [replicas, it]));
        shapes.filter(|[replicas, stages]| !self.uses_all || replicas * stages == devices).collect()
    }

    /// The numbers of replicas that are more than the devices, fewer first.
    pub(super) fn finer(&self, devices: usize) -> impl Iterator<Item = usize> {
        let (all, is_free) = (self.micro_batches, self.replicas.is_none() && !self.uses_all);
        (devices + 1..=all).filter(move |replicas| is_free && all.is_multiple_of(*replicas))
    }
}

/// More cuts into a number of stages are not all compared: ResNet-18 has at most 126, ResNet-34 and 50 have 24,310.
pub(super) const MOST_CUTS: f64 = 1e5;

/// The number of cuts of `units` units into `stages` stages: `(units - 1)! / ((stages - 1)! (units - stages)!)`.
pub(super) fn count_cuts(units: usize, stages: usize) -> f64 {
    (1..stages).map(|split| units.saturating_sub(split) as f64 / split as f64).product()
}

/// The cuts that differ from `cut` in one split point.
pub(super) fn neighbours(cut: &[Range<usize>]) -> Vec<Vec<Range<usize>>> {
    let mut found = Vec::new();
    for split in 1..cut.len() {
        for point in (cut[split - 1].start + 1..cut[split].end).filter(|point| *point != cut[split].start) {
            let mut moved = cut.to_vec();
            (moved[split - 1].end, moved[split].start) = (point, point);
            found.push(moved);
        }
    }
    found
}

/// All cuts of `units` units into `stages` stages of at least one unit each, in the order of their split points.
pub fn cuts(units: usize, stages: usize) -> Vec<Vec<Range<usize>>> {
    let whole = std::iter::once(0..units).collect();
    (1..stages).fold(vec![whole], |cuts, stage| {
        // The last stage of each cut is divided; every later stage needs a unit.
        let divided = |cut: Vec<Range<usize>>| {
            let (before, last) = (cut[..stage - 1].to_vec(), cut[stage - 1].clone());
            let points = last.start + 1..(units + 1 + stage).saturating_sub(stages);
            points.map(move |point| [&before[..], &[last.start..point, point..units]].concat())
        };
        cuts.into_iter().flat_map(divided).collect()
    })
}
