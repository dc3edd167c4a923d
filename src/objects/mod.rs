//! Whole objects below a URL: checkpoints that are kept elsewhere.
//!
//! `http(s)://` and `s3://` with the feature `remote`, and any directory, also as `file://`. The room `data` reads parts of
//! objects through the same client.

#[cfg(feature = "remote")]
mod client;
#[cfg(feature = "remote")]
mod connector;

use std::fs;
use std::io::{ErrorKind, Result as Outcome, Write};
use std::path::{Path, PathBuf};

#[cfg(feature = "remote")]
pub(crate) use self::client::{Client, failure, wait};
use crate::error::Result;
use crate::file;

/// Whether data is in an object store.
pub(crate) fn is_url(place: &Path) -> bool {
    place.to_str().is_some_and(|place| place.contains("://"))
}

pub(crate) fn local(place: &Path) -> PathBuf {
    place.to_str().and_then(|place| place.strip_prefix("file://")).map_or_else(|| place.to_path_buf(), PathBuf::from)
}

#[derive(Debug)]
pub(crate) enum Objects {
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
    pub(crate) fn open(place: &Path, flag: &str, retry_seconds: f64) -> Result<Self> {
        let path = local(place);
        if !is_url(&path) {
            return Ok(Self::Directory(path));
        }
        #[cfg(feature = "remote")]
        let opened = Client::open(&place.to_string_lossy(), flag, retry_seconds).map(Self::Remote);
        #[cfg(not(feature = "remote"))]
        let opened = Err(crate::error::Error::usage(format!(
            "{flag} is a URL, which this build cannot reach; build with --features remote, or give a directory"
        )));
        opened
    }

    /// The whole object, of at most `most` bytes; `None` if there is none.
    pub(crate) fn get(&self, name: &str, most: u64) -> Outcome<Option<Vec<u8>>> {
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
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]> + Send + 'static) -> Outcome<()> {
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

    pub(crate) fn delete(&self, name: &str) -> Outcome<()> {
        match self {
            Self::Directory(path) => fs::remove_file(path.join(name)),
            #[cfg(feature = "remote")]
            Self::Remote(client) => client.delete(name),
        }
    }
}
