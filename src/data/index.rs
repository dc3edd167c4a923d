//! Which samples a data set has and where they lie, so that any of them is one positioned read.
//!
//! An index is made once, kept beside the data (or in the user's cache directory if that is read-only) and used as long
//! as all files have the sizes and times that it was made from. Samples are in canonical order, by class and name; that
//! order defines their ids, whatever the source. The file is mapped: the table takes 20 bytes a sample, and what its
//! name adds to the one before. A pack ends with an index of itself.
//!
//! Layout, little-endian: the length of a JSON head, the head, the table, the names; then where that starts, its
//! SHA-256 and the magic number.

use std::fs::{self, Metadata, Permissions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kiln_system::file;
use kiln_system::{Error, Result};
use memmap2::{Mmap, MmapMut};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::config::{Corrupt, DataConfig, Exif};
use super::decode::LARGEST;
use super::names;

const MAGIC: &[u8; 8] = b"kilnidx2";
/// Bytes of a sample in the table: offset, file, length, label.
const ROW: usize = 20;
/// Start, checksum, magic number.
const FOOTER: usize = 8 + 32 + 8;

/// Which samples are found in files: an index that was made by other rules is made anew. 1: joined tar files are read
/// to their end, and empty lines of class names are no classes.
const RULES: u32 = 1;

/// A file may change once more within the same tick of the file system's clock, which its time would not show.
const SETTLED: Duration = Duration::from_secs(2);

/// A sample while an index is made. The order of the fields is the canonical order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sample {
    pub(super) label: u32,
    /// Of its file, as in `cat.jpg`.
    pub(super) name: Vec<u8>,
    /// A position in [`Head::files`].
    pub(super) file: u32,
    /// In that file; for a file of its own, the time of its last change.
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// A file or folder that an index was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    /// Below the data directory.
    pub(super) name: String,
    /// 0 for a folder.
    pub(super) bytes: u64,
    /// Nanoseconds since 1970.
    pub(super) modified: u64,
}

impl Stamp {
    pub(super) fn of(root: &Path, name: String) -> Result<Self> {
        let path = root.join(&name);
        let metadata = fs::metadata(&path).map_err(Error::io("read", &path))?;
        let bytes = if metadata.is_dir() { 0 } else { metadata.len() };
        Ok(Self { name, bytes, modified: modified(&metadata) })
    }
}

/// When the last of these files changed.
pub(super) fn newest(files: &[Stamp]) -> u64 {
    files.iter().map(|file| file.modified).max().unwrap_or(u64::MAX)
}

/// Whether a file that changed at this time shows another change by its time.
pub(super) fn is_settled(newest: u64) -> bool {
    UNIX_EPOCH + Duration::from_nanos(newest) + SETTLED < SystemTime::now()
}

/// The time of a file's last change in nanoseconds since 1970.
pub(super) fn modified(metadata: &Metadata) -> u64 {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// All of an index but its samples.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Head {
    /// What it was made from.
    pub(super) files: Vec<Stamp>,
    pub(super) classes: Vec<String>,
    /// Whether all images were decoded, and damaged ones left out.
    pub(super) corrupt: Corrupt,
    /// What became of stored orientations if images were encoded anew.
    pub(super) exif: Option<Exif>,
    pub(super) damaged: Vec<Stamp>,
    /// By which rules samples were found; 0 in an index of an older version.
    #[serde(default)]
    pub(super) rules: u32,
    /// How many images were left out as damaged; `None` in an index of an older version.
    #[serde(default)]
    pub(super) left_out: Option<usize>,
    pub(super) notes: Vec<String>,
    /// Training and validation samples.
    pub(super) samples: [usize; 2],
}

impl Head {
    /// That of a data set of `classes` in `files`, made in the way of `config`.
    pub(super) fn new(files: Vec<Stamp>, classes: Vec<String>, config: &DataConfig) -> Self {
        Self {
            files,
            classes,
            corrupt: config.corrupt,
            exif: None,
            damaged: Vec::new(),
            rules: RULES,
            left_out: Some(0),
            notes: Vec::new(),
            samples: [0; 2],
        }
    }
}

/// An index in memory or in a mapped file.
#[derive(Debug)]
pub(super) struct Index {
    bytes: Mmap,
    pub(super) head: Head,
    table: usize,
    names: Range<usize>,
}

impl Index {
    /// The index at the end of a file; `None` if there is none, or it is damaged.
    pub(super) fn of(bytes: Mmap) -> Option<Self> {
        let end = bytes.len().checked_sub(FOOTER)?;
        let (body, footer) = bytes.split_at(end);
        let start = usize::try_from(word(footer, 0)?).ok()?;
        let body = body.get(start..)?;
        if footer[40..] != *MAGIC || footer[8..40] != *Sha256::digest(body) {
            return None;
        }
        let head_end = usize::try_from(word(body, 0)?).ok()?.checked_add(8)?;
        let head: Head = serde_json::from_slice(body.get(8..head_end)?).ok()?;
        let table = start + head_end;
        let rows = head.samples[0].checked_add(head.samples[1])?.checked_mul(ROW)?;
        let names = table.checked_add(rows).filter(|names| *names <= end)?..end;
        let index = Self { bytes, head, table, names };
        (0..index.len()).all(|id| u64::from(index.length(id)) <= LARGEST).then_some(index)
    }

    /// An index of the training and validation `samples`.
    pub(super) fn new(head: Head, samples: [Vec<Sample>; 2]) -> Result<Self> {
        let refusal = || Error::Data("an index of the data does not fit into memory".into());
        let bytes = encode(head, samples, 0)?;
        let mapped = MmapMut::map_anon(bytes.len()).and_then(|mut map| {
            map.copy_from_slice(&bytes);
            map.make_read_only()
        });
        Self::of(mapped.map_err(|_| refusal())?).ok_or_else(refusal)
    }

    /// The index kept at one of `places`, if it was made from these `files` in the way of `config`.
    pub(super) fn kept(places: &[PathBuf], files: &[Stamp], config: &DataConfig) -> Option<Self> {
        let read = |path: &PathBuf| Self::of(file::map(path, u64::MAX).ok()?);
        let fits = |Self { head, .. }: &Self| {
            let is_counted = config.corrupt == Corrupt::Refuse || head.left_out.is_some();
            head.files == files && head.rules == RULES && head.corrupt == config.corrupt && is_counted
        };
        places.iter().filter_map(read).find(fits)
    }

    /// Keeps the index at the first of `places` for later starts, unless a file changed just now or there is no place
    /// for it.
    pub(super) fn keep(&self, places: &[PathBuf], newest: u64) {
        if is_settled(newest) {
            // Without an index the next start takes longer, and is right.
            let _kept = places.iter().find(|place| self.write(place).is_ok());
        }
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // Other users of the data may use it, too.
        let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
        file.write_all(&self.bytes)?;
        file.persist(path)?;
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.head.samples.iter().sum()
    }

    /// The ids of the training and of the validation samples.
    pub(super) fn splits(&self) -> [Range<usize>; 2] {
        [0..self.head.samples[0], self.head.samples[0]..self.len()]
    }

    pub(super) fn label(&self, id: usize) -> u32 {
        self.number(id, 16)
    }

    pub(super) fn name(&self, id: usize) -> Vec<u8> {
        names::decode(&self.bytes[self.names.clone()], self.len(), id)
    }

    /// The name of the file or folder that a sample lies in.
    pub(super) fn file(&self, id: usize) -> &str {
        self.head.files.get(self.file_number(id) as usize).map_or("", |stamp| &stamp.name)
    }

    /// Its number among [`Head::files`].
    pub(super) fn file_number(&self, id: usize) -> u32 {
        self.number(id, 8)
    }

    pub(super) fn offset(&self, id: usize) -> u64 {
        word(&self.bytes, self.table + id * ROW).unwrap_or_default()
    }

    pub(super) fn length(&self, id: usize) -> u32 {
        self.number(id, 12)
    }

    pub(super) fn range(&self, id: usize) -> Range<u64> {
        self.offset(id)..self.offset(id).saturating_add(u64::from(self.length(id)))
    }

    /// The bytes of a sample in the file that the index ends, and the four bytes after them.
    pub(super) fn content(&self, id: usize) -> Option<(&[u8], [u8; 4])> {
        let rest = self.bytes.get(usize::try_from(self.offset(id)).ok()?..)?;
        let (bytes, behind) = rest.split_at_checked(self.length(id) as usize)?;
        Some((bytes, *behind.first_chunk()?))
    }

    /// What a set of these samples is: their names and lengths, in canonical order. With the classes, that binds a run.
    pub(super) fn identity(&self, ids: Range<usize>) -> Vec<u8> {
        let mut hash = Sha256::new();
        for id in ids {
            hash.update(String::from_utf8_lossy(&self.name(id)).as_bytes());
            hash.update([0]);
            hash.update(u64::from(self.length(id)).to_le_bytes());
        }
        hash.finalize().to_vec()
    }

    fn number(&self, id: usize, at: usize) -> u32 {
        let bytes = self.bytes.get(self.table + id * ROW + at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

/// The bytes of an index that starts at `start` of its file.
pub(super) fn encode(head: Head, mut samples: [Vec<Sample>; 2], start: u64) -> Result<Vec<u8>> {
    let head = Head { samples: samples.each_ref().map(Vec::len), ..head };
    let head = serde_json::to_vec(&head).map_err(|error| Error::Data(format!("cannot describe the data: {error}")))?;
    let mut body = [&(head.len() as u64).to_le_bytes()[..], &head].concat();
    samples.iter_mut().for_each(|split| split.sort_unstable());
    let samples: Vec<&Sample> = samples.iter().flatten().collect();
    for sample in &samples {
        body.extend(sample.offset.to_le_bytes());
        body.extend([sample.file, sample.length, sample.label].into_iter().flat_map(u32::to_le_bytes));
    }
    body.extend(names::encode(samples.iter().map(|sample| &sample.name[..]))?);
    let hash = Sha256::digest(&body);
    body.extend(start.to_le_bytes());
    body.extend(hash);
    body.extend(MAGIC);
    Ok(body)
}

/// The little-endian number at `at`.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
