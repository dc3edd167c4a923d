//! Opens the store at the root of a data set.

use std::path::Path;
use std::sync::Arc;

use super::config::DataConfig;
use super::store::{Directory, Store};
use crate::error::Result;
#[cfg(not(feature = "remote"))]
use crate::error::{Error, shown};
use crate::objects::is_url;

/// The store at `root`: a directory, or the URL of an object store.
pub(super) fn store(root: &Path, config: &DataConfig) -> Result<Arc<dyn Store>> {
    if !is_url(root) {
        return Ok(Arc::new(Directory(root.to_path_buf())));
    }
    remote(root, config)
}

#[cfg(feature = "remote")]
fn remote(root: &Path, config: &DataConfig) -> Result<Arc<dyn Store>> {
    Ok(super::remote::Remote::open(root, config)?)
}

#[cfg(not(feature = "remote"))]
fn remote(root: &Path, _config: &DataConfig) -> Result<Arc<dyn Store>> {
    Err(Error::usage(format!("'{}' cannot be read by this build; build with --features remote", shown(root))))
}
