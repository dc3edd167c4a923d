//! Import and export of a ResNet's weights in the formats of other programs.
//!
//! Weights are a [`StateDict`] with torchvision's names and layouts. `pth` reads files of `torch.save`, with `zip` (the
//! container) and [`kiln_data::pickle`]; `to_pth` writes them. `names` brings foreign tensors under torchvision's
//! names, `transplant` loads them into a model's state; `onnx` writes the network; `torchvision` fetches published
//! weights; `format` and `description` are the export formats and their metadata. The room knows no model or device.

pub mod description;
mod format;
mod names;
pub mod onnx;
pub mod pth;
mod to_pth;
pub mod torchvision;
mod transplant;
mod zip;

use std::io::ErrorKind;
use std::path::Path;

pub use description::{Description, Stated};
pub use format::Format;
pub use to_pth::to_pth;
pub use transplant::{Report, transplant};

use kiln_engine::state::{self, HostTensor, Metadata, StateDict};
use kiln_system::file::{self, GIB};
use kiln_system::{Error, Result, quoted, shown};

/// Most bytes of a file, enough for weights with an optimizer's state.
const LIMIT: u64 = 4 * GIB;

/// Most names in a message.
const MOST_NAMES: usize = 3;

#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// The tensors of the network, under torchvision's names.
    pub tensors: StateDict,
    /// What the file says about them.
    pub metadata: Metadata,
    /// The names of tensors that are not of the network.
    pub left_out: Vec<String>,
}

/// The content of a weight file, safetensors or PyTorch's: the one way for every command. The format is detected from
/// the content, or else from the suffix.
///
/// # Errors
/// [`Error::Io`] if it cannot be read; [`Error::Checkpoint`] if it is not a complete file of either format, or holds
/// several networks.
pub fn read(path: &Path) -> Result<Weights> {
    let (tensors, metadata) = as_written(path)?;
    let (tensors, left_out) = names::plain(tensors, &format!("'{}'", shown(path)))?;
    Ok(Weights { tensors, metadata, left_out })
}

fn as_written(path: &Path) -> Result<(StateDict, Metadata)> {
    let bytes = file::map(path, LIMIT).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge | ErrorKind::Other => Error::Checkpoint(format!(
            "'{}' holds no weights of a ResNet: {error}; give a .pth or .safetensors file with only weights, or a \
             checkpoint",
            shown(path)
        )),
        _ => Error::io("read", path)(error),
    })?;
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
                "'{}' is an ONNX file, which cannot be read; give a .safetensors or .pth file of the same weights",
                shown(path)
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

/// The first few of `names`, quoted, and how many more there are.
pub fn list<S: AsRef<str>>(names: impl IntoIterator<Item = S, IntoIter: ExactSizeIterator>) -> String {
    few(names.into_iter().map(|name| quoted(name.as_ref())))
}

fn few(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(MOST_NAMES);
    let shown = items.take(MOST_NAMES).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}
