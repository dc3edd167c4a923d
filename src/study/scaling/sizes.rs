//! Which sizes are to be measured, and for how long.

use std::path::PathBuf;

use super::measurement::Mode;

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Numbers of replicas.
    pub replicas: Vec<usize>,
    /// Numbers of processes; sizes with fewer replicas are left out.
    pub processes: Vec<usize>,
    /// What stays the same.
    pub modes: Vec<Mode>,
    /// Measured steps of each run.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// CPU threads of each replica; 0 for as many as the largest size leaves each.
    pub threads: usize,
    /// Where the analysis goes.
    pub output: PathBuf,
}
