//! Work of a device that is recorded once and replayed: the host then has one thing to queue instead of hundreds.

/// Recorded work of a device.
pub trait Graph: Send {
    /// Records what `work` queues on this thread; the device does not do it yet. `work` does not panic.
    ///
    /// # Errors
    /// If something in it cannot be recorded. Whatever `work` has changed on the host stays changed.
    fn record(&mut self, work: &mut dyn FnMut()) -> Result<(), String>;

    /// Queues what was recorded, from and to the same memory. A graph that records nothing does `work`, which is the
    /// same, again.
    ///
    /// # Errors
    /// If the device refuses it.
    fn replay(&mut self, work: &mut dyn FnMut()) -> Result<(), String>;
}
