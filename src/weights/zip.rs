//! Zip archives as PyTorch writes them: uncompressed entries, each of which is a slice of the archive.

use std::collections::BTreeMap;
use std::io::Write;

use kiln_system::quoted;
use rawzip::extra_fields::ExtraFieldId;
use rawzip::{CompressionMethod, DataDescriptorOutput, Error, Header, ZipArchive, ZipArchiveWriter};

/// PyTorch's alignment of every entry's data, in bytes.
const ALIGNMENT: u64 = 64;

/// The field with the padding in PyTorch's files.
const PADDING: ExtraFieldId = ExtraFieldId::new(u16::from_le_bytes(*b"FB"));

pub(super) struct Archive<'a> {
    entries: BTreeMap<String, Entry<'a>>,
    /// Bytes that may still be read: entries do not overlap, so they have at most the archive's length in total.
    budget: usize,
}

struct Entry<'a> {
    data: &'a [u8],
    crc: u32,
}

impl<'a> Archive<'a> {
    /// Reads the directory at the end of an archive.
    ///
    /// # Errors
    /// A reason that completes "... is not a readable PyTorch file".
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let archive = ZipArchive::from_slice(bytes);
        let archive = archive.map_err(|_| "its end is missing or damaged, as after an incomplete download")?;
        let damaged = |error: Error| format!("its zip archive is damaged: {error}");
        let mut entries = BTreeMap::new();
        for header in archive.entries() {
            let header = header.map_err(damaged)?;
            let name = String::from_utf8_lossy(header.file_path().as_ref()).into_owned();
            let is_stored = header.compression_method() == CompressionMethod::STORE;
            let is_whole = header.compressed_size_hint() == header.uncompressed_size_hint();
            if header.flags().is_encrypted() || !is_stored || !is_whole {
                let name = quoted(&name);
                return Err(format!("its entry {name} is compressed or encrypted, which torch.save never does"));
            }
            let range = archive.get_entry(header.wayfinder()).map_err(damaged)?.compressed_data_range();
            let entry = Entry { data: &bytes[range.0 as usize..range.1 as usize], crc: header.crc32() };
            if entries.insert(name.clone(), entry).is_some() {
                return Err(format!("it has the entry {} twice", quoted(&name)));
            }
        }
        if entries.len() as u64 != archive.entries_hint() {
            return Err("its zip archive is damaged: entries are missing".into());
        }
        Ok(Self { entries, budget: bytes.len() })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The bytes of an entry, after a check of their checksum; `None` if there is no such name.
    pub(super) fn get(&mut self, name: &str) -> Result<Option<&'a [u8]>, String> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        self.budget = self.budget.checked_sub(entry.data.len()).ok_or("its entries overlap")?;
        if crc32fast::hash(entry.data) != entry.crc {
            return Err(format!("its entry {} has the wrong checksum: it is damaged", quoted(name)));
        }
        Ok(Some(entry.data))
    }
}

/// An archive of `entries`, in order. Equal entries give equal bytes: there is no time or system name.
pub(super) fn write(entries: &[(String, Vec<u8>)]) -> Result<Vec<u8>, Error> {
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for (name, data) in entries {
        // Behind the header, the name and the padding's own head.
        let padding = (archive.stream_offset() + 30 + name.len() as u64 + 4).wrapping_neg() % ALIGNMENT;
        let file = archive.new_file(name).extra_field(PADDING, &vec![0; padding as usize], Header::LOCAL)?;
        let (mut entry, _) = file.start()?;
        entry.write_all(data)?;
        entry.finish(DataDescriptorOutput::new(crc32fast::hash(data), data.len() as u64))?;
    }
    archive.finish()
}
