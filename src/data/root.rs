//! Opens the store at the root of a data set.

use std::path::Path;
use std::sync::Arc;

use kiln_objects::is_url;
use kiln_system::Result;
#[cfg(not(feature = "remote"))]
use kiln_system::{Error, shown};

use super::config::DataConfig;
use super::store::{Directory, Store};

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
