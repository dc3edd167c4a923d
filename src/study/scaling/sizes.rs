//! The arguments of a scaling study.

use std::path::PathBuf;

use super::measurement::Mode;

/// The sizes to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Numbers of replicas.
    pub replicas: Vec<usize>,
    /// Numbers of processes; sizes with fewer replicas are left out.
    pub processes: Vec<usize>,
    /// Weak or strong scaling, or both.
    pub modes: Vec<Mode>,
    /// Measured steps of each run.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// CPU threads per replica; 0 means the number that the largest size leaves each.
    pub threads: usize,
    /// The directory of the analysis.
    pub output: PathBuf,
}
