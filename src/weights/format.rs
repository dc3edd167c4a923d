//! The formats in which weights are handed on.

use std::path::Path;

use clap::ValueEnum;

use super::{Description, onnx, to_pth};
use crate::error::Result;
use crate::state::{HostTensor, StateDict, to_safetensors};

/// A format of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tensors by name; torchvision's `load_state_dict` accepts them.
    Safetensors,
    /// The same as a file that `torch.load` reads.
    #[value(alias = "pth-compatible", alias = "pt")]
    Pth,
    /// The network with its weights, for ONNX Runtime and its like.
    Onnx,
}

impl Format {
    /// The bytes of a file with these weights, which are from `origin`.
    ///
    /// # Errors
    /// As of [`to_pth()`] and [`onnx::to_onnx`].
    pub fn encode(self, tensors: &StateDict, description: &Description, origin: &str) -> Result<Vec<u8>> {
        match self {
            Self::Safetensors => Ok(to_safetensors(tensors, &description.to_metadata())),
            Self::Pth => to_pth(tensors),
            Self::Onnx => {
                let Description { classes, normalization, size, .. } = description.clone();
                let outputs = tensors.get("fc.bias").map_or(0, HostTensor::len);
                let options = onnx::Options {
                    origin: origin.into(),
                    // More outputs than names would leave the last ones without.
                    classes: if classes.len() == outputs { classes } else { Vec::new() },
                    size: [size; 2],
                    normalization: Some((normalization.mean, normalization.std)),
                };
                onnx::to_onnx(tensors, &options)
            }
        }
    }

    /// The names that files of a format end with, as messages list them.
    pub const SUFFIXES: &str = ".safetensors, .pth, .pt or .onnx";

    /// The format that a file's name asks for; none without one of [`Format::SUFFIXES`].
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_ascii_lowercase().to_str()? {
            "safetensors" => Some(Self::Safetensors),
            "pth" | "pt" => Some(Self::Pth),
            "onnx" => Some(Self::Onnx),
            _ => None,
        }
    }

    /// What its files' names end with.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Pth => "pth",
            Self::Onnx => "onnx",
        }
    }
}
