//! Work on the host's memory in pieces, on the threads of the backend that it belongs to.

use std::sync::Mutex;

/// Values that one task handles.
pub(super) const PIECE: usize = 1 << 14;

/// Calls a function once with each number below the first argument, on threads of the backend's choice.
pub(super) type Each = fn(usize, &(dyn Fn(usize) + Sync));

/// Does `work` on every piece, in any order.
pub(super) fn on_pieces<T: Send>(pieces: impl Iterator<Item = T>, each: Each, work: impl Fn(&mut T) + Sync) {
    let pieces: Vec<_> = pieces.map(Mutex::new).collect();
    each(pieces.len(), &|i| work(&mut pieces[i].lock().expect("nobody else takes this piece")));
}
