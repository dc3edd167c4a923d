//! The members of a tar file and where they lie: a walk from header to header that reads no content.
//!
//! Written over the headers of the crate `tar`, whose own walk has no limit for the size of a long name and accepts an
//! archive without its end. Archives that were joined are read to the last one, as by `tar --ignore-zeros`. Names are
//! only compared and shown: nothing is unpacked.

use tar::{EntryType, Header, PaxExtensions};

use super::store::ReadAt;

const BLOCK: u64 = 512;

/// Most bytes of an extended header.
const LONGEST: u64 = 64 << 10;

/// The first bytes of compressed files, and what they are.
const COMPRESSIONS: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: Vec<u8>,
    /// Of its content, in the archive.
    pub(super) offset: u64,
    pub(super) length: u64,
}

pub(super) struct Members<'a> {
    file: &'a dyn ReadAt,
    length: u64,
    at: u64,
}

/// What extended headers say about the next member.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    length: Option<u64>,
}

impl<'a> Members<'a> {
    pub(super) fn of(file: &'a dyn ReadAt, length: u64) -> Self {
        Self { file, length, at: 0 }
    }

    /// The next one, if there is one. An error is the second half of a sentence about the archive.
    pub(super) fn advance(&mut self) -> Result<Option<Member>, String> {
        let mut extension = Extension::default();
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let kind = header.entry_type();
            let stated =
                header.entry_size().map_err(|_| format!("has a member of invalid size at byte {}", self.at))?;
            let extended = kind.is_gnu_longname() || kind.is_pax_local_extensions();
            let length = if extended { stated } else { extension.length.unwrap_or(stated) };
            let offset = self.at + BLOCK;
            let next = length.checked_next_multiple_of(BLOCK).and_then(|padded| offset.checked_add(padded));
            let end = offset.checked_add(length).filter(|end| *end <= self.length);
            let (Some(_), Some(next)) = (end, next) else {
                let name = String::from_utf8_lossy(&header.path_bytes()).escape_debug().to_string();
                let have = self.length - offset;
                return Err(format!(
                    "is cut off: '{name}' at byte {offset} has {length} bytes, of which {have} are there"
                ));
            };
            self.at = next;
            match kind {
                _ if extended => self.extend(&mut extension, kind, offset, length)?,
                EntryType::Regular | EntryType::Continuous => {
                    let name = extension.name.unwrap_or_else(|| header.path_bytes().into_owned());
                    return Ok(Some(Member { name, offset, length }));
                }
                EntryType::GNUSparse => return Err(format!("has a sparse file at byte {offset}")),
                _ => extension = Extension::default(),
            }
        }
    }

    /// The next header; `None` at the end of the last archive: a block of zeros, and only zeros after it.
    fn header(&mut self) -> Result<Option<Header>, String> {
        let (mut header, mut is_over) = (Header::new_old(), false);
        let bytes = loop {
            let block = header.as_mut_bytes();
            let left = self.length.saturating_sub(self.at).min(BLOCK) as usize;
            // Behind the end less than a block may lie.
            if is_over && left < block.len() {
                block.fill(0);
                if left == 0 {
                    return Ok(None);
                }
            }
            let wanted = if is_over { &mut block[..left] } else { &mut block[..] };
            self.file.read_exact_at(wanted, self.at).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    format!("is cut off: it ends after {} bytes without an end of archive", self.length)
                }
                _ => format!("cannot be read: {error}"),
            })?;
            if block.iter().any(|byte| *byte != 0) {
                break header.as_bytes();
            }
            is_over = true;
            self.at += BLOCK;
        };
        let mut summed = header.clone();
        summed.set_cksum();
        match (header.cksum(), summed.cksum()) {
            (Ok(stated), Ok(sum)) if stated == sum => Ok(Some(header)),
            _ if is_over => Err(format!("has other bytes than a tar header behind its end, at byte {}", self.at)),
            _ => match COMPRESSIONS.iter().find(|(magic, _)| self.at == 0 && bytes.starts_with(magic)) {
                Some((_, name)) => {
                    Err(format!("is compressed ({name}), and its samples are read at any position: decompress it"))
                }
                None => Err(format!("has no tar header at byte {}", self.at)),
            },
        }
    }

    fn extend(&self, extension: &mut Extension, kind: EntryType, offset: u64, length: u64) -> Result<(), String> {
        if length > LONGEST {
            return Err(format!("has a header of {length} bytes at byte {offset}; at most {LONGEST} are read"));
        }
        let mut content = vec![0; length as usize];
        self.file.read_exact_at(&mut content, offset).map_err(|error| format!("cannot be read: {error}"))?;
        if kind.is_gnu_longname() {
            let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
            content.truncate(end);
            extension.name = Some(content);
            return Ok(());
        }
        for record in PaxExtensions::new(&content) {
            let record = record.map_err(|_| format!("has an invalid header at byte {offset}"))?;
            match record.key_bytes() {
                b"path" => extension.name = Some(record.value_bytes().to_vec()),
                b"size" => {
                    let size = record.value().ok().and_then(|value| value.parse().ok());
                    extension.length = Some(size.ok_or_else(|| format!("has an invalid size at byte {offset}"))?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
