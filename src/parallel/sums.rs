//! Sums over the replicas of all processes, of vectors on the host as of tensors, whose part is in `tensors.rs`.
//!
//! Sums have two modes. The fast one adds the replicas of each process and leaves the rest to the engine, whose order
//! depends on the number of processes. The ordered one exchanges the subtree sums of all processes and finishes the
//! fixed tree, so that the bits do not depend on the placement; it moves the same number of bytes if each process hosts
//! whole subtrees, and more otherwise. Shares that are sent in bf16 were rounded before; additions are f32.

use std::ops::Range;
use std::time::Duration;

use burn::tensor::bf16;
use rayon::prelude::*;

use super::config::ReducePrecision;
use super::engine::Mark;
use super::key::{Broken, Key};
use super::processes::Processes;
use super::tree::{self, fold, roots};

/// f32 values, and their way to the other processes.
pub(super) trait Vector: Sized {
    fn length(&self) -> usize;

    /// The first range of every vector, then the second one of every vector, and so on.
    fn parts(vectors: &[Self], ranges: &[Range<usize>]) -> Self;

    fn add(self, other: Self) -> Self;

    /// The sum over all processes, in the engine's order.
    fn all_reduce(self, sum: &Sum) -> Result<Self, Broken>;

    /// Sends the range `sent[i]` of this vector to process `i` and returns the `received[i]` values of each process `i`,
    /// in the order of ranks. The ranges follow each other; without them every process gets the whole vector.
    fn exchange(
        self,
        sum: &Sum,
        sent: Option<Vec<Range<usize>>>,
        received: Vec<usize>,
        precision: ReducePrecision,
    ) -> Result<Self, Broken>;
}

/// One sum over all replicas.
pub(super) struct Sum<'a> {
    pub(super) processes: &'a Processes,
    pub(super) key: Key,
    pub(super) limit: Duration,
    /// Behind the work of a device that computes the only share of this process.
    pub(super) ready: Option<Mark>,
}

impl Sum<'_> {
    /// The sum; `shares` are those of this process's replicas or, without an order, may be their sum.
    pub(super) fn of<V: Vector>(&self, shares: Vec<V>, precision: ReducePrecision) -> Result<V, Broken> {
        let halves = precision == ReducePrecision::Bf16;
        let (size, hosted, blocks) = (self.processes.replicas(), self.processes.hosted(), &self.processes.blocks);
        if !self.processes.ordered {
            let own = folded(shares.into_iter().map(Some).collect(), V::add);
            let in_order = |sums: Vec<V>| sums.into_iter().reduce(V::add).expect("there are processes");
            let counts = vec![1; blocks.len()];
            return if halves {
                self.in_pieces(vec![own], counts, [precision; 2], in_order)
            } else {
                own.all_reduce(self)
            };
        }
        let mut slots = placed(size, hosted.clone(), shares);
        if !halves {
            fold(&mut slots, hosted, V::add);
        }
        // Sums are not rounded: of halves all shares are sent.
        let place = |block: &Range<usize>| if halves { block.clone().collect() } else { roots(size, block.clone()) };
        let places: Vec<Vec<usize>> = blocks.iter().map(place).collect();
        let finish = |sums| folded(placed(size, places.concat(), sums), V::add);
        let (own, counts) = (slots.into_iter().flatten().collect(), places.iter().map(Vec::len).collect());
        self.in_pieces(own, counts, [precision, ReducePrecision::F32], finish)
    }

    /// Combines the vectors of all processes, in the order of ranks: every process combines one piece of all of them
    /// and sends it to the others. `own` are this process's vectors, process `i` has `counts[i]`; all have the same
    /// length. Each vector is sent once in the first type, and the result in the second one, whatever the number of
    /// processes.
    fn in_pieces<V: Vector>(
        &self,
        own: Vec<V>,
        counts: Vec<usize>,
        [shared, result]: [ReducePrecision; 2],
        combine: impl FnOnce(Vec<V>) -> V,
    ) -> Result<V, Broken> {
        let (length, size) = (own[0].length(), self.processes.blocks.len());
        let piece = |process| process * length / size..(process + 1) * length / size;
        let pieces: Vec<Range<usize>> = (0..size).map(piece).collect();
        let mine = pieces[self.processes.rank()].len();
        let filled: Vec<_> = pieces.iter().filter(|piece| !piece.is_empty()).cloned().collect();
        let sent = pieces.iter().map(|piece| own.len() * piece.start..own.len() * piece.end).collect();
        let received = counts.iter().map(|count| count * mine).collect();
        let incoming = V::parts(&own, &filled).exchange(self, Some(sent), received, shared)?;
        drop(own);
        let range = |number| number * mine..(number + 1) * mine;
        let part = |number| V::parts(std::slice::from_ref(&incoming), &[range(number)]);
        let combined = if mine > 0 { combine((0..counts.iter().sum()).map(part).collect()) } else { incoming };
        combined.exchange(self, None, pieces.iter().map(Range::len).collect(), result)
    }
}

/// Empty slots but for those in `places`, which hold `values`.
fn placed<V>(size: usize, places: impl IntoIterator<Item = usize>, values: Vec<V>) -> Vec<Option<V>> {
    let mut slots: Vec<Option<V>> = (0..size).map(|_| None).collect();
    places.into_iter().zip(values).for_each(|(place, value)| slots[place] = Some(value));
    slots
}

/// The sum in the tree over all slots.
pub(super) fn folded<V>(mut slots: Vec<Option<V>>, add: impl FnMut(V, V) -> V) -> V {
    let size = slots.len();
    fold(&mut slots, 0..size, add);
    slots.swap_remove(0).expect("the tree ends in its first slot")
}

/// Rounded to bf16.
pub(super) fn halves(values: &[f32]) -> Vec<bf16> {
    values.par_iter().map(|value| bf16::from_f32(*value)).collect()
}

fn widened(halves: Vec<bf16>) -> Vec<f32> {
    halves.par_iter().map(|half| half.to_f32()).collect()
}

impl Vector for Vec<f32> {
    fn length(&self) -> usize {
        self.len()
    }

    fn parts(vectors: &[Self], ranges: &[Range<usize>]) -> Self {
        let part = |range: &Range<usize>| vectors.iter().map(|vector| &vector[range.clone()]).collect::<Vec<_>>();
        ranges.iter().flat_map(part).collect::<Vec<_>>().concat()
    }

    fn add(mut self, other: Self) -> Self {
        tree::add(&mut self, &other);
        self
    }

    fn all_reduce(mut self, sum: &Sum) -> Result<Self, Broken> {
        sum.processes.all_reduce(sum.key, &mut self, sum.limit).map(|()| self)
    }

    fn exchange(
        self,
        &Sum { processes, key, limit, .. }: &Sum,
        sent: Option<Vec<Range<usize>>>,
        received: Vec<usize>,
        precision: ReducePrecision,
    ) -> Result<Self, Broken> {
        let sent = sent.map(|sent| sent.iter().map(Range::len).collect());
        match precision {
            ReducePrecision::F32 => processes.exchange(key, &self, sent, received, limit),
            ReducePrecision::Bf16 => processes.exchange(key, &halves(&self), sent, received, limit).map(widened),
        }
    }
}
