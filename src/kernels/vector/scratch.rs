//! Working memory of a thread, kept from one task to the next; it grows to the largest task and is not cleared.

use std::cell::Cell;

use super::LANES;

/// A cache line: unaligned vectors, which span two, are slow.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _values: [f32; LANES],
}

/// Which of a thread's two memories: a thread that lends one to others needs another for its own tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// For all threads of one product, owned by the calling thread.
    Shared,
    Own,
}

thread_local! {
    static MEMORY: [Cell<Vec<Line>>; 2] = const { [const { Cell::new(Vec::new()) }; 2] };
}

/// Calls `work` with memory for each of these numbers of values, with arbitrary contents.
pub(crate) fn with<const N: usize>(kind: Kind, lengths: [usize; N], work: impl FnOnce([&mut [f32]; N])) {
    let mut memory = MEMORY.with(|memory| memory[kind as usize].take());
    let lines = lengths.map(|length| length.div_ceil(LANES));
    let total = lines.iter().sum();
    if memory.len() < total {
        memory.resize(total, Line { _values: [0.0; LANES] });
    }
    let mut rest = memory.as_mut_slice();
    work(std::array::from_fn(|i| {
        let (lines, after) = std::mem::take(&mut rest).split_at_mut(lines[i]);
        rest = after;
        // SAFETY: lines are arrays of f32, one after the other.
        let values = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) };
        &mut values[..lengths[i]]
    }));
    MEMORY.with(|kept| kept[kind as usize].set(memory));
}
