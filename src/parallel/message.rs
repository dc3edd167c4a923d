//! The messages of collectives inside a process.

use std::sync::Arc;

use burn::tensor::bf16;

use super::collective::Part;

/// The contribution of a replica, or the result.
#[derive(Clone)]
pub(super) enum Message {
    Nothing,
    Floats(Arc<Vec<f32>>),
    Halves(Vec<bf16>),
    Values(Vec<f64>),
    Gathered(Arc<Vec<Vec<f64>>>),
    Part(Part),
}

impl Message {
    /// How many numbers it holds.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Halves(values) => values.len(),
            Self::Values(values) => values.len(),
            Self::Nothing | Self::Gathered(_) | Self::Part(_) => 0,
        }
    }

    pub(super) fn into_floats(self) -> Arc<Vec<f32>> {
        if let Self::Floats(values) = self { values } else { Arc::default() }
    }

    pub(super) fn into_halves(self) -> Vec<bf16> {
        if let Self::Halves(values) = self { values } else { Vec::new() }
    }

    pub(super) fn into_part(self) -> Part {
        if let Self::Part(part) = self { part } else { Arc::new(()) }
    }

    pub(super) fn into_values(self) -> Vec<f64> {
        if let Self::Values(values) = self { values } else { Vec::new() }
    }
}
