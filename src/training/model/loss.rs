//! What training minimises.

use kiln_engine::optim::{LossKind, OptimConfig};

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loss {
    pub kind: LossKind,
    /// Label smoothing, in `[0, 1)`.
    pub smoothing: f64,
    /// Targets of the binary cross-entropy above it become 1, all others 0; 0 keeps them.
    pub threshold: f64,
}

impl From<&OptimConfig> for Loss {
    fn from(config: &OptimConfig) -> Self {
        Self { kind: config.loss, smoothing: config.label_smoothing, threshold: config.bce_threshold }
    }
}

/// The cross-entropy with this label smoothing.
impl From<f64> for Loss {
    fn from(smoothing: f64) -> Self {
        Self { smoothing, ..Self::default() }
    }
}
