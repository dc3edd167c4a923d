//! The arguments of a search.

/// The setting to find.
#[derive(Debug, Clone, PartialEq)]
pub enum Find {
    /// A learning rate, by a range test.
    LearningRate {
        /// The lowest rate, of all replicas together.
        from: f64,
        /// The highest.
        to: f64,
        /// Optimizer steps.
        steps: usize,
    },
    /// The largest batch of a replica that fits.
    BatchSize {
        /// The largest size to try.
        largest: usize,
    },
}
