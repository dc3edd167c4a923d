//! The bytes of a weight file, if it can be one.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// No weight file of a ResNet-18 is larger, not even with an optimizer's state: 4 GiB.
const LIMIT: u64 = 4 << 30;

/// All bytes of a file; refuses a folder, a pipe, and more than 4 GiB.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let refused = |what: &str| {
        let rule = "give a .pth or .safetensors file with weights only, or a checkpoint";
        Error::Checkpoint(format!("'{}' {what}; {rule}", path.display()))
    };
    // Asked before it is opened: opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(Error::io("read", path))?;
    if !metadata.is_file() {
        return Err(refused("is not a file"));
    }
    if metadata.len() > LIMIT {
        return Err(refused("has more than 4 GiB, which no weights of a ResNet-18 need"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Error::io("open", path))?;
    file.take(LIMIT).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    Ok(bytes)
}
