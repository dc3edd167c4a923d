//! Filters for resizing and turning images.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How images are resized, each as by Pillow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    Bilinear,
    Bicubic,
    Nearest,
}

impl fmt::Display for Interpolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// How training images are resized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainInterpolation {
    /// As validation images.
    Same,
    Bilinear,
    Bicubic,
    Nearest,
    /// Bilinear or bicubic, drawn for each image.
    Random,
}

impl TrainInterpolation {
    /// The filter, which is `same` where none is named for training; none if it is drawn.
    pub(super) fn fixed(self, same: Option<Interpolation>) -> Option<Interpolation> {
        match self {
            Self::Same => same,
            Self::Bilinear => Some(Interpolation::Bilinear),
            Self::Bicubic => Some(Interpolation::Bicubic),
            Self::Nearest => Some(Interpolation::Nearest),
            Self::Random => None,
        }
    }
}
