//! Fetching a CIFAR archive, so that a file of that name is always the whole, right one.
//!
//! Where the archives are, and what they are checked against; how a file is fetched is for `crate::fetch`. MD5, which
//! the data set's home publishes, guards against damage, not against an attacker. Reading the archive is left to the
//! `cifar` source.

use std::path::{Path, PathBuf};

use md5::Md5;

use super::Progress;
use crate::error::Result;
use crate::fetch::{self, Published};

/// The data set's home; the environment variable `KILN_CIFAR_MIRROR` names another.
const HOME: &str = "https://www.cs.toronto.edu/~kriz";

/// No archive has more bytes; the largest has 170 million.
const LIMIT: u64 = 1 << 30;

/// A published archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Archive {
    /// Its file name, in the folder it is fetched to and on the server.
    pub name: &'static str,
    /// Its MD5, in hexadecimal.
    pub md5: &'static str,
}

/// Where archives are fetched from: `mirror` (the value of `KILN_CIFAR_MIRROR`) unless it is absent or empty.
pub fn base_url(mirror: Option<String>) -> String {
    let url = mirror.filter(|url| !url.is_empty()).unwrap_or_else(|| HOME.to_owned());
    url.trim_end_matches('/').to_owned()
}

/// Makes sure that `dir` holds `archive`, whole and right; fetches it from below `base` where it does not.
///
/// # Errors
/// When the server cannot be reached, ends too early or sends something else, or when `dir` cannot be written. Then
/// whatever `dir` held under the archive's name is as it was.
pub fn ensure(archive: &Archive, dir: &Path, base: &str, progress: &dyn Fn(Progress)) -> Result<PathBuf> {
    let file = Published {
        name: archive.name.into(),
        url: format!("{base}/{}", archive.name),
        hash: "MD5",
        checksum: archive.md5.into(),
        limit: LIMIT,
        remedy: format!("put '{}' into '{}' by hand (--data-dir)", archive.name, dir.display()),
    };
    let tell = |done, total| progress(Progress::Bytes { what: archive.name.into(), done, total });
    fetch::ensure::<Md5>(&file, dir, &tell)
}
