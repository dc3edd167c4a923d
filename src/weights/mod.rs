//! Import and export of a ResNet's weights in the formats of other programs.
//!
//! Weights are a [`StateDict`] with torchvision's names and layouts. `pth` reads files of `torch.save`, with `zip` (the
//! container), `pickle` (its `value`s, created by `machine` from `operands`) and `view` (tensors in storages); `to_pth`
//! writes them. `onnx` writes the network; `transplant` loads foreign weights into a model's state; `torchvision`
//! fetches published ones; `format` and `description` are the export formats and their metadata. The room knows no
//! model or device.

mod description;
mod file;
mod format;
mod machine;
pub mod onnx;
mod operands;
mod pickle;
pub mod pth;
mod to_pth;
pub mod torchvision;
mod transplant;
mod value;
mod view;
mod zip;

use std::path::Path;

pub use description::{Description, Stated};
pub use format::Format;
pub use to_pth::to_pth;
pub use transplant::{Report, transplant};

use crate::error::{Error, Result};
use crate::state::{self, HostTensor, Metadata, StateDict};

/// The tensors and metadata of a weight file, safetensors or PyTorch's. The format is detected from the content, or else
/// from the suffix.
///
/// # Errors
/// [`Error::Io`] if it cannot be read; [`Error::Checkpoint`] if it is not a complete file of either format.
pub fn read(path: &Path) -> Result<(StateDict, Metadata)> {
    let bytes = file::map(path)?;
    // Safetensors: the length of the header in eight bytes, then the header, a JSON object.
    if bytes.get(8) == Some(&b'{') {
        return state::from_safetensors(&bytes, path);
    }
    match pth::from_bytes(&bytes, path) {
        Ok(read) => Ok(read),
        // The suffix of an unreadable file selects the error message.
        Err(error) => match Format::of(path) {
            Some(Format::Safetensors) => state::from_safetensors(&bytes, path),
            Some(Format::Onnx) => Err(Error::Checkpoint(format!(
                "'{}' is an ONNX file, which is written and not read; give a .safetensors or .pth file of the same weights",
                path.display()
            ))),
            _ => Err(error),
        },
    }
}

/// Refuses weights that hold a number that is not finite; `origin` names their source.
///
/// # Errors
/// [`Error::Checkpoint`] naming the tensor.
pub fn check_finite(tensors: &StateDict, origin: &str) -> Result<()> {
    let fault = |name: &str, tensor: &HostTensor| {
        let data = tensor.as_f32()?;
        if !data.iter().all(|it| it.is_finite()) {
            return Some("a number that is not finite: the training diverged, or the file is damaged");
        }
        let is_negative = name.ends_with("running_var") && data.iter().any(|it| *it < 0.0);
        is_negative.then_some("a negative variance: the file is damaged")
    };
    match tensors.iter().find_map(|(name, tensor)| Some((name, fault(name, tensor)?))) {
        None => Ok(()),
        Some((name, fault)) => {
            Err(Error::Checkpoint(format!("{} in {origin} holds {fault}; give other weights", quoted(name))))
        }
    }
}

/// A name from a file, quoted for a message: escaped, and cut after 80 characters.
fn quoted(name: &str) -> String {
    let mut characters = name.chars();
    let start: String = characters.by_ref().take(80).flat_map(char::escape_debug).collect();
    format!("'{start}{}'", if characters.next().is_some() { "..." } else { "" })
}
