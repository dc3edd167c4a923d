//! The order of a sum over the replicas of all processes; `tensors.rs` adds and sends.
//!
//! Sums have two modes. The fast one adds the replicas of each process and leaves the rest to the engine, whose order
//! depends on the number of processes. The ordered one exchanges the subtree sums of all processes and finishes the
//! fixed tree, so that the bits do not depend on the placement; it moves the same number of bytes if each process hosts
//! whole subtrees, and more otherwise. Shares that are sent in bf16 were rounded before; additions are f32.

use std::ops::Range;
use std::time::Duration;

use super::config::ReducePrecision;
use super::device::HostBackend;
use super::engine::Mark;
use super::key::{Broken, Key};
use super::processes::Processes;
use super::tensors::Flat;
use super::tree::{fold, roots};

/// One sum over all replicas.
pub(super) struct Sum<'a> {
    /// The other processes or, if tensors do not go through the host, the other devices.
    pub(super) processes: Option<&'a Processes>,
    pub(super) key: Key,
    pub(super) limit: Duration,
    /// Behind the work of a device that computes the only share of this process.
    pub(super) ready: Option<Mark>,
}

impl Sum<'_> {
    /// The sum; `shares` are those of this process's replicas or, without an order, may be their sum.
    pub(super) fn of<B: HostBackend>(
        &self,
        shares: Vec<Flat<B>>,
        precision: ReducePrecision,
    ) -> Result<Flat<B>, Broken> {
        let here = |shares: Vec<Flat<B>>| folded(shares.into_iter().map(Some).collect(), Flat::add);
        let Some(processes) = self.processes else { return Ok(here(shares)) };
        let halves = precision == ReducePrecision::Bf16;
        let (size, hosted, blocks) = (processes.replicas(), processes.hosted(), &processes.blocks);
        if !processes.ordered {
            let own = here(shares);
            let in_order = |sums: Vec<Flat<B>>| sums.into_iter().reduce(Flat::add).expect("there are processes");
            let counts = vec![1; blocks.len()];
            return if halves {
                self.in_pieces(processes, vec![own], counts, [precision; 2], in_order)
            } else {
                own.all_reduce(self, processes)
            };
        }
        let mut slots = placed(size, hosted.clone(), shares);
        if !halves {
            fold(&mut slots, hosted, Flat::add);
        }
        // Sums are not rounded: of halves all shares are sent.
        let place = |block: &Range<usize>| if halves { block.clone().collect() } else { roots(size, block.clone()) };
        let places: Vec<Vec<usize>> = blocks.iter().map(place).collect();
        let finish = |sums| folded(placed(size, places.concat(), sums), Flat::add);
        let (own, counts) = (slots.into_iter().flatten().collect(), places.iter().map(Vec::len).collect());
        self.in_pieces(processes, own, counts, [precision, ReducePrecision::F32], finish)
    }

    /// Combines the vectors of all processes, in the order of ranks: every process combines one piece of all of them
    /// and sends it to the others. `own` are this process's vectors, process `i` has `counts[i]`; all have the same
    /// length. Each vector is sent once in the first type, and the result in the second one, whatever the number of
    /// processes.
    fn in_pieces<B: HostBackend>(
        &self,
        processes: &Processes,
        own: Vec<Flat<B>>,
        counts: Vec<usize>,
        [shared, result]: [ReducePrecision; 2],
        combine: impl FnOnce(Vec<Flat<B>>) -> Flat<B>,
    ) -> Result<Flat<B>, Broken> {
        let (length, size) = (own[0].length(), processes.blocks.len());
        let piece = |process| process * length / size..(process + 1) * length / size;
        let pieces: Vec<Range<usize>> = (0..size).map(piece).collect();
        let mine = pieces[processes.rank()].len();
        let filled: Vec<_> = pieces.iter().filter(|piece| !piece.is_empty()).cloned().collect();
        let sent = pieces.iter().map(|piece| own.len() * piece.start..own.len() * piece.end).collect();
        let received = counts.iter().map(|count| count * mine).collect();
        let incoming = Flat::parts(&own, &filled).exchange(self, processes, Some(sent), received, shared)?;
        drop(own);
        let part = |number| incoming.part(number * mine..(number + 1) * mine);
        let combined = if mine > 0 { combine((0..counts.iter().sum()).map(part).collect()) } else { incoming };
        combined.exchange(self, processes, None, pieces.iter().map(Range::len).collect(), result)
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
