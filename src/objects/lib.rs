//! Files from elsewhere: downloads with checksums, and object stores.
//!
//! - [`Objects`]: whole objects below a URL, `http(s)://` or `s3://` with the feature `remote`, or in any directory,
//!   also as `file://`. Who reads parts of objects does so through the same client.
//! - `fetch`, with the feature `http`: a published file, so that a file of its name is always complete and correct.
//!
//! This crate does not know what the files hold.

#[cfg(feature = "remote")]
mod client;
#[cfg(feature = "remote")]
mod connector;
#[cfg(feature = "http")]
pub mod fetch;

use std::fs;
use std::io::{ErrorKind, Result as Outcome, Write};
use std::path::{Path, PathBuf};

use kiln_system::{Result, file};

#[cfg(feature = "remote")]
pub use self::client::{Client, failure, wait};

/// Whether data is in an object store.
pub fn is_url(place: &Path) -> bool {
    place.to_str().is_some_and(|place| place.contains("://"))
}

pub fn local(place: &Path) -> PathBuf {
    place.to_str().and_then(|place| place.strip_prefix("file://")).map_or_else(|| place.to_path_buf(), PathBuf::from)
}

#[derive(Debug)]
pub enum Objects {
    Directory(PathBuf),
    #[cfg(feature = "remote")]
    Remote(Client),
}

impl Objects {
    /// Those below `place`, which the option `flag` names; a request that fails is repeated for `retry_seconds`.
    ///
    /// # Errors
    /// If the URL holds credentials or this build cannot reach it.
    #[cfg_attr(not(feature = "remote"), allow(unused_variables, reason = "only requests are repeated"))]
    pub fn open(place: &Path, flag: &str, retry_seconds: f64) -> Result<Self> {
        let path = local(place);
        if !is_url(&path) {
            return Ok(Self::Directory(path));
        }
        #[cfg(feature = "remote")]
        let opened = Client::open(&place.to_string_lossy(), flag, retry_seconds).map(Self::Remote);
        #[cfg(not(feature = "remote"))]
        let opened = Err(kiln_system::Error::usage(format!(
            "{flag} is a URL, which this build cannot reach; build with --features remote, or give a directory"
        )));
        opened
    }

    /// The whole object, of at most `most` bytes; `None` if there is none.
    pub fn get(&self, name: &str, most: u64) -> Outcome<Option<Vec<u8>>> {
        match self {
            Self::Directory(path) => match file::read(&path.join(name), most) {
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
                read => read.map(Some),
            },
            #[cfg(feature = "remote")]
            Self::Remote(client) => client.whole(name, most),
        }
    }

    /// Writes an object, which appears when it is complete.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]> + Send + 'static) -> Outcome<()> {
        match self {
            Self::Directory(path) => {
                let path = path.join(name);
                let folder = path.parent().unwrap_or(&path);
                fs::create_dir_all(folder)?;
                let mut file = tempfile::NamedTempFile::new_in(folder)?;
                file.write_all(content.as_ref())?;
                file.as_file().sync_all()?;
                file.persist(&path)?;
                Ok(())
            }
            #[cfg(feature = "remote")]
            Self::Remote(client) => client.put(name, content),
        }
    }

    pub fn delete(&self, name: &str) -> Outcome<()> {
        match self {
            Self::Directory(path) => fs::remove_file(path.join(name)),
            #[cfg(feature = "remote")]
            Self::Remote(client) => client.delete(name),
        }
    }
}
