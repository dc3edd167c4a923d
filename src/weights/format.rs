//! The formats in which weights are handed on.

use std::path::Path;

use clap::ValueEnum;

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
