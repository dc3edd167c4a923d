//! Images in Parquet files, as the Hugging Face hub keeps them.
//!
//! A page may hold a hundred megabytes, so reading the page of a sample would take too long. The first start reads all
//! files and finds where each picture lies; from then on a sample is one positioned read of its own bytes (and up to 64 KiB
//! before them in pages of Snappy), whatever row groups and pages a file has. Pages of Zstandard and gzip are decompressed
//! from their beginning up to the picture.

mod column;
mod hybrid;
mod page;
mod place;
mod snappy;
mod table;

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use self::page::Fault;
use self::place::Place;
use self::table::{Row, Table};
use super::Progress;
use super::config::{Corrupt, DataConfig};
use super::content::Content;
use super::index::{Index, Sample, Stamp};
use super::samples::{Samples, check_side, fault};
use super::shard_files::{MOST_CLASSES, PARQUET, ShardFiles};
use super::store::Store;
use crate::error::{Error, Result};
use crate::file;

/// Images in Parquet files.
#[derive(Debug)]
pub(super) struct Parquet {
    store: Arc<dyn Store>,
    index: Index,
}

impl Parquet {
    /// Finds the files in `config.dir`, which may be a pattern such as `data/{train,test}-{00..11}.parquet`.
    ///
    /// # Errors
    /// If a split is missing, or if a file is not a whole Parquet file of pictures with classes.
    pub(super) fn open(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<Self> {
        check_side(config)?;
        let files = ShardFiles::find(PARQUET, config, &[])?;
        if let Some(index) = files.kept(config) {
            return Ok(Self { store: files.store, index });
        }
        let path = |stamp: &Stamp| files.store.path(&stamp.name);
        let columns = [&config.image_column[..], &config.label_column[..]];
        let classes = files.shards().first().map(|stamp| table(&path(stamp), columns)).transpose()?;
        let classes = classes.and_then(|table| table.class_names());
        let known = classes.clone();
        let read = |number, stamp: &Stamp| {
            Part { path: path(stamp), stamp, number, columns, classes: known.as_deref() }.read(config.corrupt)
        };
        let index = files.index(classes, config, progress, read)?;
        Ok(Self { store: files.store, index })
    }
}

impl Samples for Parquet {
    fn index(&self) -> &Index {
        &self.index
    }

    /// The file is opened each time: a set may have more files than a process may have open.
    fn bytes(&self, id: usize) -> Result<Cow<'_, [u8]>> {
        let path = self.store.path(self.index.file(id));
        let place = Place::of(self.index.offset(id));
        let read = File::open(&path).and_then(|file| place.read(file, self.index.length(id) as usize));
        Ok(read.map_err(Error::io("read", &path))?.into())
    }

    fn place(&self, id: usize) -> String {
        let name = String::from_utf8_lossy(&self.index.name(id)).escape_debug().to_string();
        format!("'{name}' in '{}'", self.store.path(self.index.file(id)).display())
    }
}

/// The file at `path`, of which only the footer was read.
fn table(path: &Path, columns: [&str; 2]) -> Result<Table> {
    let bytes = file::map(path, u64::MAX).map_err(Error::io("read", path))?;
    Table::of(Bytes::from_owner(bytes), columns).map_err(|fault| refusal(path, &fault))
}

fn refusal(path: &Path, fault: &str) -> Error {
    Error::Data(format!("'{}' {fault}; fetch or write the file again", path.display()))
}

/// A file that is being read for the first time.
struct Part<'a> {
    path: PathBuf,
    stamp: &'a Stamp,
    /// In the index.
    number: u32,
    columns: [&'a str; 2],
    classes: Option<&'a [String]>,
}

/// What ends the reading of a file.
enum End {
    /// The second half of a sentence about it.
    Fault(Fault),
    Error(Error),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Part<'_> {
    /// Finds and checks all samples.
    fn read(&self, corrupt: Corrupt) -> Result<Content> {
        let table = table(&self.path, self.columns)?;
        let named = table.class_names();
        if named.as_deref() != self.classes {
            let fault = "has other names of classes than the first file";
            return Err(refusal(&self.path, fault));
        }
        let mut content = Content::default();
        let read = table.rows(|row| self.take(row, corrupt, &mut content));
        read.map_err(|end| match end {
            End::Fault(fault) => refusal(&self.path, &fault),
            End::Error(error) => error,
        })?;
        Ok(content)
    }

    /// Makes a sample of a row.
    fn take(&self, row: Row, corrupt: Corrupt, content: &mut Content) -> std::result::Result<(), End> {
        let Row { number, name, label, picture, place } = row;
        let count = self.classes.map_or(MOST_CLASSES as usize, <[String]>::len);
        let label = u32::try_from(label).ok().filter(|label| (*label as usize) < count).ok_or_else(|| {
            format!("has the class '{label}' in row {number}; a class is a number from 0 to {}", count - 1)
        })?;
        let name = name.map_or_else(|| self.name(number), <[u8]>::to_vec);
        let read = |out: &mut [u8], at: u64| {
            out.copy_from_slice(&picture[at as usize..][..out.len()]);
            Ok(())
        };
        let found = fault(read, picture.len() as u64, &name, corrupt).map_err(Error::io("read", &self.path));
        let found = found.map_err(End::Error)?.map(|fault| {
            let name = String::from_utf8_lossy(&name).escape_debug().to_string();
            format!("'{name}' in row {number} of '{}' {fault}", self.path.display())
        });
        let offset = place.number().ok_or_else(|| {
            format!("has row {number} too far in a file or page; write smaller files, with row groups of 100 rows")
        })?;
        let sample = Sample { label, name, file: self.number, offset, length: picture.len() as u32 };
        content.take(sample, found, corrupt).map_err(End::Error)
    }

    /// The name of a picture without one: its file and row.
    fn name(&self, number: usize) -> Vec<u8> {
        format!("{}/{number:08}", self.stamp.name).into_bytes()
    }
}
