//! Parallel work on pieces of the host's memory, on the backend's own threads.

use parking_lot::Mutex;

pub(crate) const PIECE: usize = 1 << 14;

/// Calls a function once with each number below the first argument, on the backend's threads.
pub type ParallelFor = fn(usize, &(dyn Fn(usize) + Sync));

pub(crate) fn on_pieces<T: Send>(
    pieces: impl Iterator<Item = T>,
    parallel_for: ParallelFor,
    work: impl Fn(&mut T) + Sync,
) {
    let pieces: Vec<_> = pieces.map(Mutex::new).collect();
    parallel_for(pieces.len(), &|i| work(&mut pieces[i].lock()));
}
