//! Where the tests find the files of the repository and the program.
//!
//! That is where they were built, or the directory in `KILN_TEST_ROOT`: a bundle that was carried to another machine
//! holds the files under their names in the repository, and the program beside the tests.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The directory that [`file`] is about.
pub static ROOT: LazyLock<PathBuf> =
    LazyLock::new(|| carried().unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).canonicalize().unwrap());

fn carried() -> Option<PathBuf> {
    std::env::var_os("KILN_TEST_ROOT").map(PathBuf::from)
}

/// A file of the repository, by its name there.
pub fn file(name: impl AsRef<Path>) -> PathBuf {
    ROOT.join(name)
}

/// The program.
pub fn train() -> PathBuf {
    match carried() {
        Some(_) => std::env::current_exe().unwrap().with_file_name("train"),
        None => env!("CARGO_BIN_EXE_train").into(),
    }
}

/// A directory for what outlives a test.
pub fn scratch() -> PathBuf {
    carried().map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), |_| std::env::temp_dir())
}
