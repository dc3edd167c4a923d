//! What the mounted files need of `src/file.rs`.

use std::io;
use std::path::Path;

pub const TEXT: u64 = 1 << 20;

pub fn read(path: &Path, _limit: u64) -> io::Result<Vec<u8>> {
    std::fs::read(path)
}

pub fn map(path: &Path, _size: u64) -> io::Result<Vec<u8>> {
    std::fs::read(path)
}
