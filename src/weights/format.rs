//! The formats in which weights are handed on.

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
    /// What its files' names end with.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Pth => "pth",
            Self::Onnx => "onnx",
        }
    }
}
