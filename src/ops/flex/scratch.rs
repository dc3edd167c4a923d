//! Working memory of a thread, kept from one task to the next.
//!
//! It grows to the largest task the thread has seen and no further: some channels of some images, and one block of
//! results. A task that waits for its parts may begin another task meanwhile, which then finds the memory taken and makes
//! its own.

use std::cell::Cell;

thread_local! {
    static MEMORY: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with slices of these lengths, whatever is in them.
pub(super) fn with<const N: usize, R>(lengths: [usize; N], work: impl FnOnce([&mut [f32]; N]) -> R) -> R {
    let mut memory = MEMORY.take();
    let total = lengths.iter().sum();
    if memory.len() < total {
        memory.resize(total, 0.0);
    }
    let mut rest = &mut memory[..total];
    let result = work(lengths.map(|length| rest.split_off_mut(..length).expect("the lengths add up to the total")));
    MEMORY.set(memory);
    result
}
