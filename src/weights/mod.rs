//! The weights room: a ResNet-18's weights in from files of other programs, and out to them.
//!
//! Its currency is the [`StateDict`], under torchvision's names and in its layouts. Read in this order: `pth`, which
//! reads files of `torch.save` by way of `zip` (the container), `pickle` (what is in it: `value`s, made by `machine`
//! from `operands`) and `view` (tensors in storages); `to_pth`, the way back; `onnx`, which writes the network itself;
//! `transplant`, which fits foreign weights into a model's; `torchvision`, which fetches the published ones; `format`
//! and `description`, what is written and what it says of itself. The room knows no model and no device.

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

pub use description::Description;
pub use format::Format;
pub use to_pth::to_pth;
pub use transplant::{Report, transplant};

use crate::error::{Error, Result};
use crate::state::{self, Metadata, StateDict};

/// The tensors of a weight file, safetensors or PyTorch's, and what its header says, which PyTorch's have none of; which
/// of them it is is seen from the content, or else the name.
///
/// # Errors
/// [`crate::error::Error::Io`] if it cannot be read; [`crate::error::Error::Checkpoint`] if it is not a whole file of
/// either kind.
pub fn read(path: &Path) -> Result<(StateDict, Metadata)> {
    let bytes = file::map(path)?;
    // Safetensors: the length of the header in eight bytes, then the header, a JSON object.
    if bytes.get(8) == Some(&b'{') {
        return state::from_safetensors(&bytes, path);
    }
    match pth::from_bytes(&bytes, path) {
        Ok(tensors) => Ok((tensors, Metadata::new())),
        // What is neither of them is judged as what it is called.
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

/// A name out of a file, in quotes, fit for one line of a message: escaped, and cut after 80 characters.
fn quoted(name: &str) -> String {
    let mut characters = name.chars();
    let start: String = characters.by_ref().take(80).flat_map(char::escape_debug).collect();
    format!("'{start}{}'", if characters.next().is_some() { "..." } else { "" })
}
