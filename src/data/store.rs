//! Where the files of a data set are: below a directory, or below a prefix of an object store (`remote`).

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::Result as Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use kiln_system::file;
use kiln_system::{Error, Result};
use sha2::{Digest, Sha256};

use super::index::Stamp;

/// Named files, of which any part can be read.
pub(super) trait Store: Debug + Send + Sync {
    /// The names in `folder`, which is "" or a name; none if there is no such folder.
    fn names(&self, folder: &str) -> Result<Vec<String>>;

    /// The size and the state of a file; `None` if there is none.
    fn stamp(&self, name: &str) -> Result<Option<Stamp>>;

    fn read(&self, name: &str, range: Range<u64>) -> Read<Vec<u8>>;

    /// A file for reading in order, with jumps.
    fn open(&self, name: &str) -> Read<Box<dyn ReadAt>>;

    /// The path or address of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;

    /// Where an index named `name` may be kept, the preferred place first.
    fn index_places(&self, name: &str) -> Vec<PathBuf>;

    /// How many files to read at the same time.
    fn parallel(&self) -> usize;
}

pub(super) trait ReadAt {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> Read<()>;
}

impl ReadAt for File {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> Read<()> {
        FileExt::read_exact_at(self, out, at)
    }
}

#[derive(Debug)]
pub(super) struct Directory(pub(super) PathBuf);

impl Store for Directory {
    fn names(&self, folder: &str) -> Result<Vec<String>> {
        let folder = self.path(folder);
        if folder != self.0 && !folder.is_dir() {
            return Ok(Vec::new());
        }
        let listed = fs::read_dir(&folder).and_then(Iterator::collect::<Read<Vec<_>>>);
        let listed = listed.map_err(Error::io("read", folder))?;
        Ok(listed.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    fn stamp(&self, name: &str) -> Result<Option<Stamp>> {
        match Stamp::of(&self.0, name.to_string()) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            stamp => stamp.map(Some),
        }
    }

    fn read(&self, name: &str, range: Range<u64>) -> Read<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        FileExt::read_exact_at(&File::open(self.0.join(name))?, &mut bytes, range.start)?;
        Ok(bytes)
    }

    fn open(&self, name: &str) -> Read<Box<dyn ReadAt>> {
        Ok(Box::new(File::open(self.0.join(name))?))
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.0.clone() } else { self.0.join(name) }
    }

    fn index_places(&self, name: &str) -> Vec<PathBuf> {
        let cached = self
            .0
            .canonicalize()
            .ok()
            .and_then(|root| cached(root.as_os_str().as_encoded_bytes(), &format!("{name}.index")));
        std::iter::once(self.0.join(format!(".kiln-{name}.index"))).chain(cached).collect()
    }

    fn parallel(&self) -> usize {
        rayon::current_num_threads()
    }
}

/// The path of a file in the user's cache directory about the data at `root`.
pub(super) fn cached(root: &[u8], name: &str) -> Option<PathBuf> {
    let hash = Sha256::digest(root);
    let digits: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    Some(file::cache()?.join("kiln").join(format!("{digits}-{name}")))
}
