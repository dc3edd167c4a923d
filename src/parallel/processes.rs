//! Collectives between processes, for the replicas they host.
//!
//! Sums have two modes. The fast one adds the replicas of each process and leaves the rest to the engine, whose order
//! depends on the number of processes. The ordered one exchanges the subtree sums of all processes and finishes the
//! fixed tree, so that the bits do not depend on the placement; it moves the same number of bytes if each process hosts
//! whole subtrees, and more otherwise.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::bf16;
use rayon::prelude::*;

use super::engine::{DeviceEngine, Engine, Judge, Symptom};
use super::key::{Broken, Key};
use super::tree::{add, fold, roots};

/// The time limit before the first step, when the first process reads a checkpoint; losses are detected earlier.
const STARTUP: Duration = Duration::from_secs(3600);

/// The engine between the processes that host a stage, and the replicas of each of them.
pub type StageEngine = (Arc<dyn Engine>, Vec<Range<usize>>);

/// The processes of a run, and the engine between them.
#[derive(Debug, Clone)]
pub struct Processes {
    engine: Arc<dyn Engine>,
    /// For gradients, if they need not go through the host.
    pub(super) devices: Option<Arc<dyn DeviceEngine>>,
    judge: Arc<dyn Judge>,
    /// The replicas of each process.
    pub(super) blocks: Vec<Range<usize>>,
    /// Whether sums are taken in the order of the tree.
    pub(super) ordered: bool,
    /// The processes that host each stage, for the stages of several of them.
    stages: Vec<Option<Processes>>,
}

fn widened(halves: &[bf16]) -> Vec<f32> {
    halves.par_iter().map(|half| half.to_f32()).collect()
}

/// Finishes the tree over `size` slots, where the slots in `places` hold `sums`.
fn finished(size: usize, places: Vec<usize>, sums: impl Iterator<Item = Vec<f32>>) -> Vec<f32> {
    let mut slots: Vec<Option<Vec<f32>>> = (0..size).map(|_| None).collect();
    places.into_iter().zip(sums).for_each(|(place, sum)| slots[place] = Some(sum));
    fold(&mut slots, 0..size, |left, right| add(left, &right));
    slots.swap_remove(0).unwrap_or_default()
}

impl Processes {
    /// `blocks` are the replicas that each process hosts, `ordered` asks for sums in the order of the tree.
    pub fn new(engine: Arc<dyn Engine>, judge: Arc<dyn Judge>, blocks: Vec<Range<usize>>, ordered: bool) -> Self {
        Self { engine, devices: None, judge, blocks, ordered, stages: Vec::new() }
    }

    /// Sums tensors by `devices`, if given.
    pub fn with_devices(self, devices: Option<Arc<dyn DeviceEngine>>) -> Self {
        Self { devices, ..self }
    }

    /// With an engine for each stage: between the processes that host it, if there are several and this is one of them.
    pub fn with_stages(self, engines: Vec<Option<StageEngine>>) -> Self {
        let stage = |(engine, blocks)| Self::new(engine, self.judge.clone(), blocks, self.ordered);
        let stages = engines.into_iter().map(|engine| engine.map(stage)).collect();
        Self { stages, ..self }
    }

    /// The processes that exchange the gradients of `stage`, if there are several.
    pub(super) fn of_stage(&self, stage: usize) -> Option<Self> {
        if self.stages.is_empty() { Some(self.clone()) } else { self.stages.get(stage)?.clone() }
    }

    /// The replicas of this process.
    pub fn hosted(&self) -> Range<usize> {
        self.blocks[self.engine.rank()].clone()
    }

    /// The size of the world.
    pub fn replicas(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.end)
    }

    /// Ends all waits for other processes.
    pub fn close(&self) {
        self.devices.iter().for_each(|devices| devices.close());
        self.engine.close();
    }

    /// The sum over all processes, in place.
    pub(super) fn sum(&self, key: Key, values: &mut [f32], limit: Duration) -> Result<(), Broken> {
        self.with_all(key, || self.engine.all_reduce(key, values, limit))
    }

    /// As [`Processes::sum`] with half the traffic: shares and the sum are sent in bf16, additions are f32.
    pub(super) fn sum_bf16(&self, key: Key, values: &mut [f32], limit: Duration) -> Result<(), Broken> {
        let share: Vec<bf16> = values.par_iter().map(|value| bf16::from_f32(*value)).collect();
        let add = |shares: Vec<&[bf16]>| -> Vec<bf16> {
            let mut shares = shares.into_iter().map(widened);
            let mut sum = shares.next().unwrap_or_default();
            shares.for_each(|share| add(&mut sum, &share));
            sum.into_iter().map(bf16::from_f32).collect()
        };
        let sum: Vec<bf16> = self.in_pieces(key, &[share], vec![1; self.engine.size()], add, limit)?;
        values.par_iter_mut().zip(sum).for_each(|(value, half)| *value = half.to_f32());
        Ok(())
    }

    /// The sum over all replicas, in the order of the tree; `shares` are those of this process.
    pub(super) fn ordered_sum(&self, key: Key, shares: Vec<Vec<f32>>, limit: Duration) -> Result<Vec<f32>, Broken> {
        let (size, hosted) = (self.replicas(), self.hosted());
        let mut slots: Vec<Option<Vec<f32>>> = (0..size).map(|_| None).collect();
        slots[hosted.clone()].iter_mut().zip(shares).for_each(|(slot, share)| *slot = Some(share));
        fold(&mut slots, hosted, |left, right| add(left, &right));
        let own: Vec<Vec<f32>> = slots.into_iter().flatten().collect();
        let trees: Vec<Vec<usize>> = self.blocks.iter().map(|block| roots(size, block.clone())).collect();
        let counts = trees.iter().map(Vec::len).collect();
        let finish = |sums: Vec<&[f32]>| finished(size, trees.concat(), sums.into_iter().map(<[f32]>::to_vec));
        self.in_pieces(key, &own, counts, finish, limit)
    }

    /// As [`Processes::ordered_sum`] of shares in bf16.
    pub(super) fn ordered_sum_bf16(&self, key: Key, shares: &[Vec<bf16>], limit: Duration) -> Result<Vec<f32>, Broken> {
        let (size, counts) = (self.replicas(), self.blocks.iter().map(Range::len).collect());
        let sum = |shares: Vec<&[bf16]>| finished(size, (0..size).collect(), shares.into_iter().map(widened));
        self.in_pieces(key, shares, counts, sum, limit)
    }

    /// Combines the vectors of all processes, in the order of ranks: every process combines one piece of all of them
    /// and sends it to the others. `own` are this process's vectors, process `i` has `counts[i]`; all have the same
    /// length. Each vector and the result are sent once, whatever the number of processes.
    fn in_pieces<T: bytemuck::Pod, U: bytemuck::Pod>(
        &self,
        key: Key,
        own: &[Vec<T>],
        counts: Vec<usize>,
        combine: impl FnOnce(Vec<&[T]>) -> Vec<U>,
        limit: Duration,
    ) -> Result<Vec<U>, Broken> {
        let pieces = self.pieces(own[0].len());
        let mine = pieces[self.engine.rank()].len();
        let outgoing: Vec<T> =
            pieces.iter().flat_map(|piece| own.iter().flat_map(|vector| &vector[piece.clone()])).copied().collect();
        let sent: Vec<usize> = pieces.iter().map(|piece| own.len() * piece.len() * size_of::<T>()).collect();
        let received: Vec<usize> = counts.iter().map(|count| count * mine * size_of::<T>()).collect();
        let exchange = || self.engine.all_to_all(key, bytemuck::cast_slice(&outgoing), &sent, &received, limit);
        let incoming: Vec<T> = bytemuck::pod_collect_to_vec(&self.with_all(key, exchange)?);
        drop(outgoing);
        let combined = combine(incoming.chunks_exact(mine.max(1)).collect());
        self.gather(key, &combined, pieces.iter().map(Range::len), limit)
    }

    /// The piece of a vector that each process combines.
    pub(super) fn pieces(&self, length: usize) -> Vec<Range<usize>> {
        let size = self.engine.size();
        (0..size).map(|process| process * length / size..(process + 1) * length / size).collect()
    }

    /// The numbers of all replicas in the order of ranks; `own` has `length` numbers per replica of this process.
    pub(super) fn gather_replicas<T: bytemuck::Pod>(
        &self,
        key: Key,
        own: &[T],
        length: usize,
        limit: Duration,
    ) -> Result<Vec<T>, Broken> {
        self.gather(key, own, self.blocks.iter().map(|block| block.len() * length), limit)
    }

    fn gather<T: bytemuck::Pod>(
        &self,
        key: Key,
        own: &[T],
        lengths: impl Iterator<Item = usize>,
        limit: Duration,
    ) -> Result<Vec<T>, Broken> {
        let bytes: Vec<usize> = lengths.map(|length| length * size_of::<T>()).collect();
        let all = self.with_all(key, || self.engine.all_gather(key, bytemuck::cast_slice(own), &bytes, limit))?;
        Ok(bytemuck::pod_collect_to_vec(&all))
    }

    /// This process, from 0.
    pub fn rank(&self) -> usize {
        self.engine.rank()
    }

    /// The bytes of process `root`; only for the time before the first step.
    pub fn broadcast_to_all(&self, key: Key, root: usize, values: Option<Vec<u8>>) -> Result<Vec<u8>, Broken> {
        self.broadcast_from(key, root, values, STARTUP)
    }

    /// The numbers of all processes in the order of ranks, equally many of each; only before the first step.
    pub fn gather_from_all(&self, key: Key, own: &[u64]) -> Result<Vec<u64>, Broken> {
        self.gather(key, own, std::iter::repeat_n(own.len(), self.engine.size()), STARTUP)
    }

    /// The bytes of the process that hosts replica `root`.
    pub(super) fn broadcast(
        &self,
        key: Key,
        root: usize,
        values: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<Vec<u8>, Broken> {
        self.broadcast_from(key, self.host_of(root), values, limit)
    }

    fn broadcast_from(
        &self,
        key: Key,
        process: usize,
        values: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<Vec<u8>, Broken> {
        let own = values.filter(|_| process == self.engine.rank());
        let mut length = own.as_ref().map_or(0, Vec::len).to_le_bytes();
        self.with_all(key, || {
            self.engine.broadcast(key, process, &mut length, limit)?;
            let mut values = own.unwrap_or_else(|| vec![0; usize::from_le_bytes(length)]);
            if !values.is_empty() {
                self.engine.broadcast(key, process, &mut values, limit)?;
            }
            Ok(values)
        })
    }

    /// Sends bytes to the process that hosts replica `to`.
    pub(super) fn send(&self, key: Key, to: usize, bytes: &[u8], limit: Duration) -> Result<(), Broken> {
        self.with_all(key, || self.engine.send(key, self.host_of(to), bytes, limit))
    }

    /// The bytes that the process of replica `from` sends.
    pub(super) fn receive(&self, key: Key, from: usize, limit: Duration) -> Result<Vec<u8>, Broken> {
        self.with_all(key, || self.engine.receive(key, self.host_of(from), limit))
    }

    fn host_of(&self, replica: usize) -> usize {
        self.blocks.iter().position(|block| block.contains(&replica)).unwrap_or_default()
    }

    /// Runs a collective; after an error asks the judge for the verdict.
    pub(super) fn with_all<T>(&self, key: Key, act: impl FnOnce() -> Result<T, Symptom>) -> Result<T, Broken> {
        self.judge.doing(&key.to_string());
        act().map_err(|symptom| Broken::Peer(self.judge.verdict(&symptom)))
    }
}
