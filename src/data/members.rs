//! The files of a data set, from a folder or a compressed archive.
//!
//! An archive is read once, as a stream, and only the wanted files are kept in memory: nothing is unpacked to disk, so
//! paths in the archive cannot do harm.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use kiln_system::file::{self, MIB};
use kiln_system::{Error, Result, shown};

/// Most bytes of an unpacked data set; the largest has 187 million.
const LIMIT: u64 = 256 * MIB;

/// Reads the `wanted` files that exist in a folder, or that a `.tar.gz` holds in any folder.
pub(super) fn read(place: &Path, archived: bool, wanted: &[&str]) -> Result<BTreeMap<String, Vec<u8>>> {
    if archived {
        let file = File::open(place).map_err(Error::io("open", place))?;
        return unpack(BufReader::new(file), wanted).map_err(|reason| {
            Error::Data(format!(
                "'{}' is damaged or incomplete: {reason}; delete it and fetch it again with --download",
                shown(place)
            ))
        });
    }
    let present = wanted.iter().filter(|name| place.join(name).is_file());
    let read = |name: &&str| {
        let path = place.join(name);
        Ok((name.to_string(), file::read(&path, LIMIT).map_err(Error::io("read", path))?))
    };
    present.map(read).collect()
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
