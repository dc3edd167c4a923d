//! Working memory of a thread, kept from one task to the next.
//!
//! It grows to the largest task the thread has seen and no further: some channels of some images, and one block of
//! results. A task does not wait for other tasks while it holds the memory, so it is never asked for twice.

use std::cell::RefCell;

thread_local! {
    static MEMORY: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with slices of these lengths, filled with zeros.
pub(super) fn with<const N: usize, R>(lengths: [usize; N], work: impl FnOnce([&mut [f32]; N]) -> R) -> R {
    MEMORY.with_borrow_mut(|memory| {
        let total = lengths.iter().sum();
        if memory.len() < total {
            memory.resize(total, 0.0);
        }
        let mut rest = &mut memory[..total];
        rest.fill(0.0);
        work(lengths.map(|length| rest.split_off_mut(..length).expect("the lengths add up to the total")))
    })
}
