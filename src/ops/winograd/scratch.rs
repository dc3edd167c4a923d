//! Working memory of a thread, kept from one task to the next: it grows to the largest and is not cleared.

use std::cell::Cell;

use super::vector::LANES;

/// A cache line: vectors that lie across two are slow.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _values: [f32; LANES],
}

/// Which of a thread's memories: a thread that shares one with others takes part in their work.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// For all threads, lent by the one that asked for the work.
    Shared,
    /// For one task.
    Own,
    /// For what the kernels are given, and for what they give.
    #[cfg(feature = "flex")]
    Images,
}

thread_local! {
    static MEMORY: [Cell<Vec<Line>>; 3] = const { [const { Cell::new(Vec::new()) }; 3] };
}

/// Calls `work` with room for images in another order, whatever is in it.
#[cfg(feature = "flex")]
pub(crate) fn with_images<const N: usize>(lengths: [usize; N], work: impl FnOnce([&mut [f32]; N])) {
    with(Kind::Images, lengths, |memory| {
        let mut lengths = lengths.into_iter();
        work(memory.map(|at| {
            let length = lengths.next().expect("as many lengths as memories");
            // SAFETY: `with` gives each its own memory of that length, which lives while `work` runs and began as zeros.
            unsafe { std::slice::from_raw_parts_mut(at, length) }
        }));
    });
}

/// Calls `work` with memory for each of these numbers of values, whatever is in it.
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
