//! Memory maps of weight files.

use std::io::ErrorKind;
use std::path::Path;

use kiln_system::file::{self, GIB};
use kiln_system::{Error, Result, shown};
use memmap2::Mmap;

/// Most bytes of a file, enough for weights with an optimizer's state.
const LIMIT: u64 = 4 * GIB;

/// Maps a file; refuses a folder, a pipe, and more than 4 GiB.
pub(super) fn map(path: &Path) -> Result<Mmap> {
    file::map(path, LIMIT).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge | ErrorKind::Other => Error::Checkpoint(format!(
            "'{}' holds no weights of a ResNet: {error}; give a .pth or .safetensors file with only weights, or a \
             checkpoint",
            shown(path)
        )),
        _ => Error::io("read", path)(error),
    })
}
