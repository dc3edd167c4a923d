//! Zip archives as PyTorch writes them: uncompressed entries, at most 4 GiB in all.
//!
//! Entries are slices of the archive, so stated sizes cause no allocation. Layout: PKWARE's APPNOTE.TXT, sections
//! 4.3.7, 4.3.12 and 4.3.16. PyTorch adds zip64 records, which are ignored: the plain ones must suffice.

use std::collections::BTreeMap;

use flate2::Crc;

use super::quoted;

const LOCAL: [u8; 4] = *b"PK\x03\x04";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
/// PyTorch's alignment of every entry's data, in bytes.
const ALIGNMENT: usize = 64;

pub(super) struct Archive<'a> {
    entries: BTreeMap<&'a str, Entry<'a>>,
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
    pub fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let end = bytes.len().checked_sub(22).map(|start| &bytes[start..]).filter(|end| end.starts_with(&END));
        let end = end.ok_or("its end is missing, as of a download that was cut off")?;
        let (count, start) = (u16_at(end, 10), u32_at(end, 16));
        let mut rest = start.and_then(|start| bytes.get(start..)).ok_or_else(damaged)?;
        let mut entries = BTreeMap::new();
        for _ in 0..count.ok_or_else(damaged)? {
            let (name, entry, after) = directory_entry(bytes, rest)?;
            if entries.insert(name, entry).is_some() {
                return Err(format!("it has the entry {} twice", quoted(name)));
            }
            rest = after;
        }
        Ok(Self { entries, budget: bytes.len() })
    }

    /// The names of all entries.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.keys().copied()
    }

    /// The bytes of an entry, after a check of their checksum; `None` if there is no such name.
    ///
    /// # Errors
    /// Those of [`Archive::open`].
    pub fn get(&mut self, name: &str) -> Result<Option<&'a [u8]>, String> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        self.budget = self.budget.checked_sub(entry.data.len()).ok_or("entries of it overlap")?;
        if crc(entry.data) != entry.crc {
            return Err(format!("its entry {} has the wrong checksum: it is damaged", quoted(name)));
        }
        Ok(Some(entry.data))
    }
}

/// The first entry of a directory, and the rest of the directory.
fn directory_entry<'a>(bytes: &'a [u8], directory: &'a [u8]) -> Result<(&'a str, Entry<'a>, &'a [u8]), String> {
    let (header, rest) =
        directory.split_at_checked(46).filter(|(it, _)| it.starts_with(&CENTRAL)).ok_or_else(damaged)?;
    let number = |at| u32_at(header, at).ok_or_else(damaged);
    let length = |at| u16_at(header, at).ok_or_else(damaged);
    let (flags, method) = (length(8)?, length(10)?);
    let (name, rest) = rest.split_at_checked(length(28)?).ok_or_else(damaged)?;
    let rest = rest.get(length(30)? + length(32)?..).ok_or_else(damaged)?;
    let name = std::str::from_utf8(name).map_err(|_| damaged())?;
    if flags & 1 != 0 || method != 0 || number(20)? != number(24)? {
        return Err(format!("its entry {} is compressed or encrypted, which torch.save never does", quoted(name)));
    }
    let local = bytes.get(number(42)?..).filter(|local| local.starts_with(&LOCAL)).ok_or_else(damaged)?;
    let skipped =
        u16_at(local, 26).zip(u16_at(local, 28)).map(|(name, extra)| 30 + name + extra).ok_or_else(damaged)?;
    let data = local.get(skipped..).and_then(|data| data.get(..number(20).ok()?)).ok_or_else(damaged)?;
    let crc = u32::from_le_bytes(*header[16..].first_chunk().ok_or_else(damaged)?);
    Ok((name, Entry { data, crc }, rest))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.first_chunk().map(|it| u16::from_le_bytes(*it).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

fn damaged() -> String {
    "its zip archive is damaged".into()
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// An archive of `entries`, in order; `None` if it would exceed 4 GiB or 65,534 entries. Equal entries give equal
/// bytes: there is no time or system name.
pub(super) fn write(entries: &[(String, Vec<u8>)]) -> Option<Vec<u8>> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let (start, length) = (u32::try_from(file.len()).ok()?, u32::try_from(data.len()).ok()?);
        // Padding is an extra field: an id, its length, and zeros.
        let padding = (file.len() + 30 + name.len() + 4).wrapping_neg() % ALIGNMENT;
        let common = |extra: usize| {
            let mut header = Vec::new();
            // Version 2.0, no flags, stored, and the first day that a zip archive can name: 1980-01-01.
            header.extend([20_u16, 0, 0, 0, 1 << 5 | 1].iter().flat_map(|it| it.to_le_bytes()));
            header.extend([crc(data), length, length].iter().flat_map(|it| it.to_le_bytes()));
            let name = u16::try_from(name.len()).ok()?;
            header.extend([name, extra as u16].iter().flat_map(|it| it.to_le_bytes()));
            Some(header)
        };
        file.extend(LOCAL);
        file.extend(common(4 + padding)?);
        file.extend(name.bytes());
        file.extend(*b"FB");
        file.extend((padding as u16).to_le_bytes());
        file.resize(file.len() + padding, 0);
        file.extend(data);
        directory.extend(CENTRAL);
        directory.extend(20_u16.to_le_bytes());
        directory.extend(common(0)?);
        // No comment, the first disk, no attributes.
        directory.extend([0; 10]);
        directory.extend(start.to_le_bytes());
        directory.extend(name.bytes());
    }
    let (start, length) = (u32::try_from(file.len()).ok()?, u32::try_from(directory.len()).ok()?);
    let count = u16::try_from(entries.len()).ok().filter(|count| *count < u16::MAX)?;
    file.extend(directory);
    file.extend(END);
    file.extend([0, 0, count, count].iter().flat_map(|it| it.to_le_bytes()));
    file.extend([start, length].iter().rev().flat_map(|it| it.to_le_bytes()));
    file.extend([0; 2]);
    Some(file)
}
