//! Working memory of a thread, kept from one task to the next.
//!
//! It grows to the size of the thread's largest task: some channels of some images, and one block of results. While a
//! task waits for its parts, its thread may start another one, which finds the memory taken and allocates its own.

use std::cell::Cell;

thread_local! {
    static MEMORY: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with slices of these lengths and arbitrary contents.
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
