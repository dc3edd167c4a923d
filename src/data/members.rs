//! The files of a data set, from a folder or a compressed archive.
//!
//! An archive is read once, as a stream, and only the wanted files are kept in memory: nothing is unpacked to disk, so
//! paths in the archive cannot do harm.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use kiln_system::file::{self, MIB};
use kiln_system::{Error, Result, shown};

/// Most bytes of an unpacked data set; the largest has 187 million.
const LIMIT: u64 = 256 * MIB;

pub(super) struct Members {
    origin: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
}

impl Members {
    /// Reads the `wanted` files that exist in `folder`.
    pub(super) fn of_folder<'a>(folder: &Path, wanted: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let present = wanted.into_iter().filter(|name| folder.join(name).is_file());
        let read = |name: &str| {
            let path = folder.join(name);
            Ok((name.to_owned(), file::read(&path, LIMIT).map_err(Error::io("read", path))?))
        };
        Ok(Self { origin: folder.to_path_buf(), files: present.map(read).collect::<Result<_>>()? })
    }

    /// Reads the `wanted` files that the `.tar.gz` at `archive` holds, in any folder.
    pub(super) fn of_archive<'a>(archive: &Path, wanted: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let wanted: Vec<&str> = wanted.into_iter().collect();
        let file = File::open(archive).map_err(Error::io("open", archive))?;
        let files = unpack(BufReader::new(file), &wanted).map_err(|reason| {
            Error::Data(format!(
                "'{}' is damaged or incomplete: {reason}; delete it and fetch it again with --download",
                shown(archive)
            ))
        })?;
        Ok(Self { origin: archive.to_path_buf(), files })
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        self.files.remove(name)
    }

    pub(super) fn path(&self, name: &str) -> String {
        shown(self.origin.join(name))
    }
}

fn unpack(archive: impl Read, wanted: &[&str]) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive).take(LIMIT));
    let files = unpack_entries(&mut archive, wanted);
    // A small archive may unpack to any size.
    if archive.into_inner().limit() == 0 {
        return Err(std::io::Error::other(format!("it unpacks to more than {} MiB", LIMIT / MIB)));
    }
    files
}

fn unpack_entries(
    archive: &mut tar::Archive<impl Read>,
    wanted: &[&str],
) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|name| entry.header().entry_type().is_file() && wanted.contains(name)) {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            if content.len() as u64 != entry.size() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            files.insert(name.to_owned(), content);
        }
    }
    Ok(files)
}
