//! URLs and checksums of the CIFAR archives, which `kiln_objects::fetch` downloads.
//!
//! The data set's home publishes MD5, which detects damage but not an attack.

use std::path::{Path, PathBuf};

use kiln_objects::fetch::{self, Published};
use kiln_system::{Result, shown};
use md5::Md5;

use super::Progress;

/// The data set's home; the environment variable `KILN_CIFAR_MIRROR` overrides it.
const HOME: &str = "https://www.cs.toronto.edu/~kriz";

/// Most bytes of an archive; the largest has 170 million.
const LIMIT: u64 = 200 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Archive {
    /// File name, locally and on the server.
    pub name: &'static str,
    /// MD5 in hexadecimal.
    pub md5: &'static str,
}

/// The base URL of the archives: `mirror` (the value of `KILN_CIFAR_MIRROR`) unless it is absent or empty.
pub fn base_url(mirror: Option<String>) -> String {
    let url = mirror.filter(|url| !url.is_empty()).unwrap_or_else(|| HOME.to_owned());
    url.trim_end_matches('/').to_owned()
}

/// Ensures that `dir` holds `archive` with the right checksum; otherwise fetches it from `base`.
///
/// # Errors
/// If the server cannot be reached, ends too early or sends other content, or if `dir` cannot be written. An existing
/// file is then left unchanged.
pub fn ensure(archive: &Archive, dir: &Path, base: &str, progress: &dyn Fn(Progress)) -> Result<PathBuf> {
    let file = Published {
        name: archive.name.into(),
        url: format!("{base}/{}", archive.name),
        hash: "MD5",
        checksum: archive.md5.into(),
        limit: LIMIT,
        remedy: format!("put '{}' into '{}' by hand (--data-dir)", archive.name, shown(dir)),
    };
    let tell = |done, total| progress(Progress::Bytes { what: archive.name.into(), done, total });
    fetch::ensure::<Md5>(&file, dir, &tell)
}
