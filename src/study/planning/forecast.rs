//! The prediction of one layout: replicas, and the stages of each.
//!
//! A step is its passes ([`super::pipeline`]), then what is left of the exchange of gradients between the replicas of
//! each stage, and the update. A stage of several replicas is as slow as the slowest of their devices. Not counted:
//! waits for synchronised batch-norm statistics.

use std::cmp::Ordering;
use std::ops::Range;

use kiln_engine::parallel::ahead;

use super::measured::Measured;
use super::pipeline::{self, Work};

/// Replicas, and the stages of each. Worker `stage * replicas + replica` is on the device of that index, unless devices
/// have [`shares`](Layout::shares).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    pub replicas: usize,
    /// Micro-batches of a replica in a step.
    pub micro_batches: usize,
    /// The units of each stage.
    pub cut: Vec<Range<usize>>,
    /// How many replicas each device hosts, as in `--replicas-per-device`; empty if each has one worker.
    pub shares: Vec<usize>,
}

impl Layout {
    /// The units with which the later stages begin, as in `--split-points`.
    pub fn split_points(&self) -> Vec<usize> {
        self.cut.iter().skip(1).map(|part| part.start).collect()
    }

    /// How many devices it uses.
    pub(crate) fn devices(&self) -> usize {
        if self.shares.is_empty() { self.replicas * self.cut.len() } else { self.shares.len() }
    }

    /// The devices that host a stage, each with its replicas of it.
    fn hosts(&self, stage: usize) -> Vec<(usize, usize)> {
        if self.shares.is_empty() {
            return (stage * self.replicas..(stage + 1) * self.replicas).map(|device| (device, 1)).collect();
        }
        self.shares.iter().copied().enumerate().collect()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    pub layout: Layout,
    pub step_seconds: f64,
    /// Images per second, of all replicas.
    pub images_per_second: f64,
    /// The share of the step in which devices of the layout wait.
    pub bubble: f64,
    /// Bytes on a device of each stage, of those with most replicas.
    pub memory: Vec<f64>,
    pub fits: bool,
    /// Bytes that all devices send in a step.
    pub traffic: f64,
}

impl Forecast {
    /// What fits comes before what does not, then the faster one.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        other.fits.cmp(&self.fits).then(self.step_seconds.total_cmp(&other.step_seconds))
    }
}

impl Measured {
    /// Predicts `layout`, with `batch_size` images in a micro-batch of a replica.
    pub fn forecast(&self, layout: Layout, batch_size: usize) -> Forecast {
        let Layout { replicas, micro_batches, ref cut, .. } = layout;
        let (stages, times) = (cut.len(), self.times(layout.devices()));
        // Those that add up their gradients: replicas where they share memory, else devices.
        let in_memory = self.parts_update && !self.in_processes;
        let partners = if in_memory { replicas } else { layout.devices() / stages };
        let of = |part: &Range<usize>, bytes: &dyn Fn(usize) -> f64| part.clone().map(bytes).sum::<f64>();
        // The input of a stage.
        let received = |part: &Range<usize>| part.start.checked_sub(1).map_or(0.0, |unit| self.units[unit].passed);
        // The slowest of the devices that host a stage, in all of it or in some units.
        let slowest_in = |stage: usize, units: &Range<usize>, seconds: &dyn Fn(usize, usize) -> f64| {
            let on = |(device, share)| share as f64 * of(units, &|unit| seconds(device, unit));
            layout.hosts(stage).into_iter().map(on).fold(0.0, f64::max)
        };
        let slowest = |stage: usize, seconds: &dyn Fn(usize, usize) -> f64| slowest_in(stage, &cut[stage], seconds);
        let work: Vec<Work> = (0..stages)
            .map(|stage| Work {
                forward: slowest(stage, &|device, unit| times[device][unit].forward),
                backward: slowest(stage, &|device, unit| times[device][unit].backward),
                receiving: received(&cut[stage]) / self.link,
            })
            .collect();
        let ahead: Vec<usize> =
            (0..stages).map(|stage| ahead([stage, stages], self.in_processes, micro_batches)).collect();
        let gradients: Vec<f64> = cut.iter().map(|part| of(part, &|unit| self.units[unit].gradients)).collect();
        let parts = if in_memory { replicas as f64 } else { 1.0 };
        let update: Vec<f64> =
            (0..stages).map(|stage| slowest(stage, &|device, unit| times[device][unit].update) / parts).collect();
        let exchange = |unit: usize| self.units[unit].gradients * self.exchanged(partners) / self.link / parts;
        // Between processes, final gradients of a unit are exchanged while the last backward pass computes earlier
        // units.
        let left = |stage: usize| {
            let (mut computed, mut exchanged) = (0.0, 0.0);
            for unit in cut[stage].clone().rev() {
                if self.in_processes {
                    computed += slowest_in(stage, &(unit..unit + 1), &|device, unit| times[device][unit].backward);
                }
                exchanged = f64::max(exchanged, computed) + exchange(unit);
            }
            exchanged - computed
        };
        let ends = (0..stages).map(|stage| left(stage) + update[stage]);
        let step_seconds = pipeline::seconds(&work, &ahead, micro_batches) + ends.fold(0.0, f64::max);
        let passes: f64 = work.iter().map(|it| micro_batches as f64 * (it.forward + it.backward)).sum();
        let busy = (passes + update.iter().sum::<f64>()) / (stages as f64 * step_seconds);
        let memory: Vec<f64> = cut
            .iter()
            .zip(&ahead)
            .map(|(part, ahead)| {
                let begun = (*ahead).min(micro_batches) as f64;
                let again = part.clone().map(|unit| self.units[unit].again).fold(0.0, f64::max);
                let kept = of(part, &|unit| self.units[unit].state + begun * self.units[unit].kept);
                kept + begun * received(part) + again
            })
            .collect();
        let over = |stage: usize| {
            let is_over = |&(device, share): &(usize, usize)| share as f64 * memory[stage] > self.room.each[device];
            layout.hosts(stage).iter().any(is_over)
        };
        let fits = !(0..stages).any(over) && replicas as f64 * memory.iter().sum::<f64>() <= self.room.all;
        let most = layout.shares.iter().copied().max().unwrap_or(1) as f64;
        let between: f64 = cut.iter().map(received).sum();
        let both_ways = 2.0 * (micro_batches * replicas) as f64 * between;
        Forecast {
            step_seconds,
            images_per_second: (replicas * micro_batches * batch_size) as f64 / step_seconds,
            // Not below zero by rounding.
            bubble: (1.0 - busy).max(0.0),
            memory: memory.iter().map(|bytes| most * bytes).collect(),
            fits,
            traffic: both_ways + 2.0 * (partners - 1) as f64 * gradients.iter().sum::<f64>(),
            layout,
        }
    }

    /// How often the bytes of the gradients go over a link, or through memory, one after the other: between processes
    /// in a ring, in which all send at the same time; in one process one replica's share after the other.
    fn exchanged(&self, partners: usize) -> f64 {
        let others = (partners - 1) as f64;
        if self.in_processes { 2.0 * others / partners as f64 } else { others }
    }
}
