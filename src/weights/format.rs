//! The formats of exported weights.

use std::path::Path;

use clap::ValueEnum;
use kiln_engine::state::{StateDict, to_safetensors};
use kiln_system::Result;

use super::{Description, onnx, to_pth};

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
    /// The bytes of a file with these weights; `origin` names their source in errors.
    pub fn encode(self, tensors: &StateDict, description: &Description, origin: &str) -> Result<Vec<u8>> {
        match self {
            Self::Safetensors => Ok(to_safetensors(tensors, &description.to_metadata())),
            Self::Pth => to_pth(tensors, Some(description)),
            Self::Onnx => onnx::to_onnx(tensors, description, origin),
        }
    }

    /// The suffixes of all formats, for messages.
    pub const SUFFIXES: &str = ".safetensors, .pth, .pt or .onnx";

    /// The format of a file by its suffix; `None` unless that is one of [`Format::SUFFIXES`].
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_ascii_lowercase().to_str()? {
            "safetensors" => Some(Self::Safetensors),
            "pth" | "pt" => Some(Self::Pth),
            "onnx" => Some(Self::Onnx),
            _ => None,
        }
    }

    /// The suffix of its files.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Pth => "pth",
            Self::Onnx => "onnx",
        }
    }
}
