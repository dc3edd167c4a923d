//! Working memory of a thread, kept from one task to the next.
//!
//! It grows to the size of the thread's largest task: some channels of some images, and one block of results. While a
//! task waits for its parts, its thread may start another one, which finds the memory taken and allocates its own.

use std::cell::Cell;

thread_local! {
    static MEMORY: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with a slice of this length and arbitrary contents.
pub(super) fn with(length: usize, work: impl FnOnce(&mut [f32])) {
    let mut memory = MEMORY.take();
    if memory.len() < length {
        memory.resize(length, 0.0);
    }
    work(&mut memory[..length]);
    MEMORY.set(memory);
}
