//! Import and export of a ResNet's weights in the formats of other programs.
//!
//! Weights are a [`StateDict`] with torchvision's names and layouts. `pth` reads files of `torch.save`, with `zip` (the
//! container), `pickle` (its `value`s, created by `machine`) and `view` (tensors in storages); `to_pth`
//! writes them. `onnx` writes the network; `transplant` loads foreign weights into a model's state; `torchvision`
//! fetches published ones; `format` and `description` are the export formats and their metadata. The room knows no
//! model or device.

mod description;
mod format;
mod machine;
pub mod onnx;
mod pickle;
pub mod pth;
mod to_pth;
pub mod torchvision;
mod transplant;
mod value;
mod view;
mod zip;

use std::io::ErrorKind;
use std::path::Path;

pub use description::Description;
pub use format::Format;
pub use to_pth::to_pth;
pub use transplant::{Report, transplant};

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::file::{self, GIB};
use crate::state::{self, Metadata, StateDict};

/// Most bytes of a file, enough for weights with an optimizer's state.
const LIMIT: u64 = 4 * GIB;

/// The tensors and metadata of a weight file, safetensors or PyTorch's (without metadata). The format is detected from
/// the content, or else from the suffix.
///
/// # Errors
/// [`Error::Io`] if it cannot be read; [`Error::Checkpoint`] if it is not a complete file of either format.
pub fn read(path: &Path) -> Result<(StateDict, Metadata)> {
    let bytes = map(path)?;
    // Safetensors: the length of the header in eight bytes, then the header, a JSON object.
    if bytes.get(8) == Some(&b'{') {
        return state::from_safetensors(&bytes, path);
    }
    match pth::from_bytes(&bytes, path) {
        Ok(tensors) => Ok((tensors, Metadata::new())),
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

/// Maps a file; refuses a folder, a pipe, and more than 4 GiB.
fn map(path: &Path) -> Result<Mmap> {
    file::map(path, LIMIT).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge | ErrorKind::Other => Error::Checkpoint(format!(
            "'{}' holds no weights of a ResNet: {error}; give a .pth or .safetensors file with weights only, or a \
             checkpoint",
            path.display()
        )),
        _ => Error::io("read", path)(error),
    })
}

/// A name from a file, quoted for a message: escaped, and cut after 80 characters.
fn quoted(name: &str) -> String {
    let mut characters = name.chars();
    let start: String = characters.by_ref().take(80).flat_map(char::escape_debug).collect();
    format!("'{start}{}'", if characters.next().is_some() { "..." } else { "" })
}
