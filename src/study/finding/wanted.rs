//! What is to be found.

/// What to find.
#[derive(Debug, Clone, PartialEq)]
pub enum Find {
    /// A learning rate: from the first rate to the second one in so many steps.
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
        /// No larger one is tried.
        largest: usize,
    },
}
