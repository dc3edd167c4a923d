//! Working memory of a thread, kept from one task to the next; it grows to the largest task and is not cleared.

use std::cell::Cell;

use crate::ops::vector::LANES;

/// A cache line: unaligned vectors, which span two, are slow.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _values: [f32; LANES],
}

/// Which of a thread's two memories: a thread that lends one to others needs another for its own tasks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// For all threads of one product, owned by the calling thread.
    Shared,
    /// For one task.
    Own,
}

thread_local! {
    static MEMORY: [Cell<Vec<Line>>; 2] = const { [const { Cell::new(Vec::new()) }; 2] };
}

/// Calls `work` with memory for each of these numbers of values, with arbitrary contents.
pub(super) fn with<const N: usize>(kind: Kind, lengths: [usize; N], work: impl FnOnce([*mut f32; N])) {
    let mut memory = MEMORY.with(|memory| memory[kind as usize].take());
    let lines = lengths.map(|length| length.div_ceil(LANES));
    let total = lines.iter().sum();
    if memory.len() < total {
        memory.resize(total, Line { _values: [0.0; LANES] });
    }
    let (first, mut taken) = (memory.as_mut_ptr(), 0);
    work(lines.map(|lines| {
        taken += lines;
        first.wrapping_add(taken - lines).cast()
    }));
    MEMORY.with(|kept| kept[kind as usize].set(memory));
}
