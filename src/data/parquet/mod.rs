//! Images in Parquet files, as the Hugging Face hub keeps them.
//!
//! The first start reads all files once, row group by row group, into a pack in the user's cache directory; from then
//! on that pack is what is trained from. One process of a machine writes it, and the others wait.

mod pages;
mod table;

use std::borrow::Cow;
use std::fs::{self, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::RgbImage;
use kiln_system::file;
use kiln_system::{Error, Result, shown};
use rayon::prelude::*;

use self::pages::{MOST_TIMES, SMALL};
use self::table::{Row, Table};
use super::config::{Corrupt, DataConfig};
use super::decode::to_raw;
use super::found_samples::FoundSamples;
use super::index::{Head, Index, Sample, Stamp, is_settled, newest};
use super::pack::{self, Pack, Recipe, Writer};
use super::samples::{Samples, check_side, fault};
use super::shard_files::{MOST_CLASSES, PARQUET, ShardFiles};
use super::store::cached;
use super::{Packed, Progress};

pub(super) struct Parquet<'a> {
    files: ShardFiles,
    config: &'a DataConfig,
    progress: &'a dyn Fn(Progress),
    root: PathBuf,
    classes: Option<Vec<String>>,
    rows: usize,
    /// Of all pictures, with little else.
    bytes: u64,
}

impl<'a> Parquet<'a> {
    /// Finds the files in `config.dir`, which may be a pattern such as `data/{train,test}-{00..11}.parquet`.
    pub(super) fn find(config: &'a DataConfig, progress: &'a dyn Fn(Progress)) -> Result<Self> {
        check_side(config)?;
        let files = ShardFiles::find(PARQUET, config, &[])?;
        let root = files.store.path("");
        Ok(Self { files, config, progress, root, classes: None, rows: 0, bytes: 0 })
    }

    /// The images, from a pack in the cache that is written now if there is none. If it `is_dry`, the pack is only
    /// announced, and the images are black.
    pub(super) fn open(mut self, is_dry: bool) -> Result<Arc<dyn Samples>> {
        let path = self.cached()?;
        let index = match self.kept(&path) {
            Some(index) => index,
            None if is_dry => {
                self.look("to convert", &path)?;
                let (head, samples) = self.read(None)?;
                return Ok(Arc::new(NotConverted(Index::new(head, samples)?)));
            }
            None => self.convert(&path).map_err(|error| match error {
                Error::Io { action: "write" | "create" | "open", .. } => Error::Data(format!(
                    "{error}; XDG_CACHE_HOME names another directory for the pack, train pack writes it to any file"
                )),
                error => error,
            })?,
        };
        Ok(Arc::new(Pack { path, index, origin: Some(self.root) }))
    }

    /// Writes a pack of the images to `output`.
    pub(super) fn pack(mut self, recipe: Option<Recipe>, output: &Path) -> Result<Packed> {
        self.look("packing", output)?;
        let mut writer = Writer::new(output, self.bytes)?;
        let (head, samples) = self.read(Some(&mut writer))?;
        let (images, notes) = (samples.iter().map(Vec::len).sum(), head.notes.clone());
        if images == 0 {
            return Err(pack::nothing(self.config, &notes));
        }
        let head = if recipe.is_some() { head } else { pack::alone(head) };
        let whole = writer.finish(head, samples)?;
        let bytes = if recipe.is_some() {
            let index = self.kept(whole.0.path()).ok_or_else(|| unread(output))?;
            let pack = Pack { path: whole.0.path().into(), index, origin: Some(self.root) };
            pack::write(&pack, recipe, output, self.progress)?
        } else {
            pack::appear(whole, output)?
        };
        Ok(Packed { images, bytes, notes })
    }

    /// Where the pack is kept; there is one of the same files, whatever their sizes and times.
    fn cached(&self) -> Result<PathBuf> {
        let DataConfig { image_column, label_column, corrupt, .. } = self.config;
        let names: Vec<&str> = self.files.shards().iter().map(|stamp| &stamp.name[..]).collect();
        let root = self.root.canonicalize().map_err(Error::io("read", &self.root))?;
        cached(format!("{:?}", (root, names, image_column, label_column, corrupt)).as_bytes(), "parquet.pack")
            .ok_or_else(|| Error::usage("there is no cache directory for a pack of the images; set XDG_CACHE_HOME"))
    }

    fn kept(&self, path: &Path) -> Option<Index> {
        Index::kept(&[path.into()], self.files.shards(), self.config)
    }

    /// Writes the pack, or waits for another process that does.
    fn convert(&mut self, path: &Path) -> Result<Index> {
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let name = path.with_extension("lock");
        let _lock = loop {
            let lock = file::open_to_write(&name).map_err(Error::io("open", &name))?;
            if let Err(TryLockError::WouldBlock) = lock.try_lock() {
                (self.progress)(Progress::Line(format!("waiting     for a process that writes {}", shown(path))));
                // Without locks every process writes it, which is right, too.
                drop(lock.lock());
            }
            let number = |metadata: io::Result<Metadata>| metadata.ok().map(|metadata| metadata.ino());
            // Who had the lock has removed its file.
            if number(lock.metadata()) == number(fs::metadata(&name)) {
                break lock;
            }
        };
        let written = self.kept(path).map_or_else(|| self.write(path), Ok);
        drop(fs::remove_file(name));
        written
    }

    fn write(&mut self, path: &Path) -> Result<Index> {
        // What was left by a process that was killed.
        for file in path.parent().into_iter().flat_map(fs::read_dir).flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&pack::beside(path)) {
                drop(fs::remove_file(file.path()));
            }
        }
        self.look("converting", path)?;
        let mut writer = Writer::new(path, self.bytes)?;
        let (head, samples) = self.read(Some(&mut writer))?;
        let whole = writer.finish(head, samples)?;
        let index = self.kept(whole.0.path()).ok_or_else(|| unread(path))?;
        if is_settled(newest(self.files.shards())) {
            pack::appear(whole, path)?;
        }
        Ok(index)
    }

    /// Reads the footers and says what will become of the images.
    fn look(&mut self, verb: &str, output: &Path) -> Result<()> {
        let (mut classes, mut rows, mut bytes) = (None, 0, 0_u64);
        for file in self.parquet_files() {
            let table = file.table(self.config)?;
            let starts = table.starts().map_err(|fault| file.refusal(&fault))?;
            rows += starts.last().copied().unwrap_or_default();
            bytes = bytes.saturating_add(table.picture_bytes());
            if file.number == 0 {
                classes = table.class_names();
            }
        }
        (self.classes, self.rows, self.bytes) = (classes, rows, bytes);
        let (files, megabytes) = (self.files.shards().len(), bytes as f64 / 1e6);
        let (root, output) = (shown(&self.root), shown(output));
        (self.progress)(Progress::Line(format!(
            "{verb:<11} {root}: {rows} images in {files} Parquet files, {megabytes:.1} MB, into {output}"
        )));
        Ok(())
    }

    /// Reads all images, in order, and appends them to `out`.
    fn read(&self, mut out: Option<&mut Writer>) -> Result<(Head, [Vec<Sample>; 2])> {
        let (mut contents, mut done, what) = (Vec::new(), 0, shown(&self.root));
        for file in self.parquet_files() {
            let table = file.table(self.config)?;
            let refused = |fault: String| file.refusal(&fault);
            if table.class_names() != self.classes {
                return Err(refused("has other names of classes than the first file".into()));
            }
            let (mut content, mut bytes) = (FoundSamples::default(), 0);
            for (group, rows) in table.starts().map_err(refused)?.windows(2).enumerate() {
                let mut next = table.group(group, rows[0]..rows[1]).map_err(refused)?;
                loop {
                    let rows = next().map_err(refused)?;
                    if rows.is_empty() {
                        break;
                    }
                    bytes += rows.iter().map(|row| row.picture.len() as u64).sum::<u64>();
                    if bytes > MOST_TIMES * file.stamp.bytes + SMALL {
                        return Err(refused(format!("has more than {MOST_TIMES} times its bytes in pictures")));
                    }
                    let found: Vec<_> = rows.par_iter().map(|row| file.inspected(row)).collect();
                    for (row, found) in rows.iter().zip(found) {
                        let (mut sample, fault) = found?;
                        if let (Some(out), None) = (&mut out, &fault) {
                            sample.offset = out.append(row.picture.data())?;
                        }
                        content.take(sample, fault, file.corrupt)?;
                    }
                    done += rows.len();
                    (self.progress)(Progress::Files { what: what.clone(), done, total: self.rows });
                }
            }
            contents.push(content);
        }
        self.files.head(self.classes.clone(), self.config, contents)
    }

    fn parquet_files(&self) -> impl Iterator<Item = ParquetFile<'_>> {
        let (corrupt, classes) = (self.config.corrupt, self.classes.as_ref().map_or(MOST_CLASSES as usize, Vec::len));
        (0..).zip(self.files.shards()).map(move |(number, stamp)| {
            let path = self.files.store.path(&stamp.name);
            ParquetFile { path, stamp, number, classes, corrupt }
        })
    }
}

struct ParquetFile<'a> {
    path: PathBuf,
    stamp: &'a Stamp,
    /// In the index.
    number: u32,
    /// How many there are.
    classes: usize,
    corrupt: Corrupt,
}

impl ParquetFile<'_> {
    fn table(&self, config: &DataConfig) -> Result<Table> {
        let (file, length) = file::open(&self.path, u64::MAX).map_err(Error::io("read", &self.path))?;
        let columns = [&config.image_column[..], &config.label_column[..]];
        Table::of(file, length, columns).map_err(|fault| self.refusal(&fault))
    }

    fn refusal(&self, fault: &str) -> Error {
        Error::Data(format!("'{}' {fault}; fetch or write the file again", shown(&self.path)))
    }

    /// The sample of a row, and what is wrong with it.
    fn inspected(&self, row: &Row) -> Result<(Sample, Option<String>)> {
        let (number, picture) = (row.number, row.picture.data());
        let label =
            u32::try_from(row.label).ok().filter(|label| (*label as usize) < self.classes).ok_or_else(|| {
                let (label, last) = (row.label, self.classes - 1);
                self.refusal(&format!("has the class '{label}' in row {number}; a class is a number from 0 to {last}"))
            })?;
        // Without a name of its own a picture has that of its file and row.
        let name = row.name.clone().unwrap_or_else(|| format!("{}/{number:08}", self.stamp.name).into_bytes());
        let read = |out: &mut [u8], at: u64| {
            out.copy_from_slice(&picture[at as usize..][..out.len()]);
            Ok(())
        };
        let found = fault(read, picture.len() as u64, &name, self.corrupt).map_err(Error::io("read", &self.path))?;
        let found = found.map(|fault| {
            let name = String::from_utf8_lossy(&name).escape_debug().to_string();
            format!("'{name}' in row {number} of '{}' {fault}", shown(&self.path))
        });
        Ok((Sample { label, name, file: self.number, offset: 0, length: picture.len() as u32 }, found))
    }
}

fn unread(path: &Path) -> Error {
    Error::Data(format!("'{}' is not what was written; check the disk", shown(path)))
}

/// Images that are not converted yet.
#[derive(Debug)]
struct NotConverted(Index);

impl Samples for NotConverted {
    fn index(&self) -> &Index {
        &self.0
    }

    /// A black image, not so small that it is taken for one of a set of small images.
    fn bytes(&self, _id: usize) -> Result<Cow<'_, [u8]>> {
        Ok(to_raw(&RgbImage::new(128, 128)).into())
    }

    fn place(&self, id: usize) -> String {
        format!("'{}'", self.0.file(id))
    }
}
