//! The user's own images: a folder per class below `train`, and below `val` (or `valid`, `validation`, `test`).
//!
//! The layout is torchvision's ImageFolder. Classes are the sorted names of the folders of `train`, images the sorted
//! names of their files, so the data set is equal on every machine. Other files are reported in a note. All files are
//! checked once; the index remembers it as long as no folder and no file has changed.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{self, File, FileType};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use kiln_system::file;
use kiln_system::{Error, Result, shown};
use rayon::prelude::*;

use super::Progress;
use super::classes;
use super::config::{Corrupt, DataConfig};
use super::decode::{LARGEST, SUFFIXES, is_image};
use super::found_samples::FoundSamples;
use super::index::{Head, Index, Sample, Stamp, modified};
use super::samples::{REPORT_EVERY, Samples, check_side, fault, in_parallel};
use super::shard_files::SPLITS;
use super::store::{Directory, Store};

/// Names listed in a note before it only counts the rest.
const MOST_NAMES: usize = 3;

/// Files whose times are compared between two reports of progress.
const CHECK_EVERY: usize = 1 << 14;

/// The name of its index.
const SOURCE: &str = "folder";

#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    index: Index,
}

impl Folder {
    /// Finds the images in `dir/train` and `dir/val`, or what else these splits may be called.
    ///
    /// # Errors
    /// If a folder is missing or empty, if a class of the validation images is not in `train`, or if a file is not an
    /// image or is truncated.
    pub(super) fn open(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<Self> {
        check_side(config)?;
        let root = config.dir.clone();
        let [training, validation] = split_folders(&root)?;
        let classes = folders(&root.join(&training))?;
        classes::check(&classes, &shown(root.join(&training)))?;
        let stamps = [stamps(&root, &training)?, stamps(&root, &validation)?];
        let places = Directory(root.clone()).index_places(SOURCE);
        if let Some(index) = Index::kept(&places, &stamps.concat(), config) {
            let folder = Self { root: root.clone(), index };
            if folder.is_unchanged(progress) {
                return Ok(folder);
            }
        }
        let (mut notes, mut damaged, mut samples) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        let (mut first, mut left_out) = (0, 0);
        for (split, stamps) in samples.iter_mut().zip(&stamps) {
            let (items, others) = list(&root, stamps, &classes, progress)?;
            notes.extend(note(&root.join(&stamps[0].name), &others));
            let found = inspect(&root, stamps, items, config.corrupt, progress)?;
            notes.extend(found.left_out());
            left_out += found.faults();
            damaged.extend(found.damaged);
            split.extend(found.samples.into_iter().map(|sample| Sample { file: sample.file + first, ..sample }));
            first = stamps.len() as u32;
        }
        let stamps = stamps.concat();
        let times = stamps.iter().chain(&damaged).map(|stamp| stamp.modified);
        let times = times.chain(samples.iter().flatten().map(|sample| sample.offset));
        let newest = times.max().unwrap_or(u64::MAX);
        let head = Head { damaged, left_out: Some(left_out), notes, ..Head::new(stamps, classes, config) };
        let index = Index::new(head, samples)?;
        index.keep(&places, newest);
        Ok(Self { root, index })
    }

    fn path(&self, id: usize) -> PathBuf {
        self.root.join(self.index.file(id)).join(OsStr::from_bytes(&self.index.name(id)))
    }

    /// Whether every file has the size and the time that the index was made from.
    fn is_unchanged(&self, progress: &dyn Fn(Progress)) -> bool {
        let is_as_before = |stamp: &Stamp| Stamp::of(&self.root, stamp.name.clone()).is_ok_and(|now| now == *stamp);
        if !self.index.head.damaged.iter().all(is_as_before) {
            return false;
        }
        let is_same = |id| {
            let expected = (u64::from(self.index.length(id)), self.index.offset(id));
            fs::metadata(self.path(id)).is_ok_and(|metadata| (metadata.len(), modified(&metadata)) == expected)
        };
        let (what, total) = (format!("the list of '{}'", shown(&self.root)), self.index.len());
        (0..total).step_by(CHECK_EVERY).all(|start| {
            progress(Progress::Files { what: what.clone(), done: start, total });
            (start..total.min(start + CHECK_EVERY)).into_par_iter().all(is_same)
        })
    }
}

impl Samples for Folder {
    fn index(&self) -> &Index {
        &self.index
    }

    fn bytes(&self, id: usize) -> Result<Cow<'_, [u8]>> {
        let path = self.path(id);
        Ok(file::read(&path, LARGEST).map_err(Error::io("read", &path))?.into())
    }

    fn place(&self, id: usize) -> String {
        format!("'{}'", shown(self.path(id)))
    }
}

/// A file of a class, which is folder `file` of its split.
struct Item {
    label: u32,
    file: u32,
    path: PathBuf,
}

fn inspect(
    root: &Path,
    stamps: &[Stamp],
    items: Vec<Item>,
    corrupt: Corrupt,
    progress: &dyn Fn(Progress),
) -> Result<FoundSamples> {
    let what = shown(root.join(&stamps[0].name));
    let report = |done, total| progress(Progress::Files { what: what.clone(), done, total });
    let look = |Item { label, file, path }: Item| {
        let mut content = FoundSamples::default();
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, opened) = opened.map_err(Error::io("read", &path))?;
        let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
        let read = |out: &mut [u8], at| opened.read_exact_at(out, at);
        let found = fault(read, metadata.len(), &name, corrupt).map_err(Error::io("read", &path))?;
        if found.is_some() {
            let place = path.strip_prefix(root).unwrap_or(&path);
            // An index holds texts only; with a time to come it is not kept.
            let unnamed = Stamp { name: shown(place), bytes: 0, modified: u64::MAX };
            content.damaged.push(place.to_str().map_or(Ok(unnamed), |place| Stamp::of(root, place.into()))?);
        }
        let found = found.map(|fault| format!("'{}' {fault}", shown(&path)));
        let sample = Sample { label, name, file, offset: modified(&metadata), length: metadata.len() as u32 };
        content.take(sample, found, corrupt)?;
        Ok(content)
    };
    Ok(FoundSamples::of(in_parallel(items, REPORT_EVERY, 0, look, report)?))
}

/// The names of the folders with the training and the validation images.
fn split_folders(root: &Path) -> Result<[String; 2]> {
    let find = |splits: &[&[&'static str]]| splits.concat().into_iter().find(|name| root.join(name).is_dir());
    let train = find(&SPLITS[..1]).ok_or_else(|| {
        Error::Data(format!(
            "no folder '{}'; --data folder reads train/CLASS/*.jpg and val/CLASS/*.jpg below --data-dir, and \
             --data synthetic needs no files",
            shown(root.join("train"))
        ))
    })?;
    let validation = find(&SPLITS[1..]).ok_or_else(|| {
        Error::Data(format!(
            "no folder 'val', 'valid', 'validation' or 'test' in '{}'; --data folder needs images to validate on beside \
             '{train}'",
            shown(root)
        ))
    })?;
    Ok([train.into(), validation.into()])
}

/// The states of a split's folder and of its class folders.
fn stamps(root: &Path, split: &str) -> Result<Vec<Stamp>> {
    let classes = folders(&root.join(split))?.into_iter().map(|class| format!("{split}/{class}"));
    std::iter::once(split.to_string()).chain(classes).map(|name| Stamp::of(root, name)).collect()
}

/// The sorted names of the folders in `folder`, which are those of classes.
fn folders(folder: &Path) -> Result<Vec<String>> {
    let folders = entries(folder)?.into_iter().filter(|(_, kind)| kind.is_some_and(|kind| kind.is_dir()));
    let name = |(path, _): (PathBuf, _)| {
        let name = path.file_name().and_then(|name| name.to_str()).map(String::from);
        name.ok_or_else(|| {
            let rule = "is not UTF-8, as that of a class must be; rename the folder";
            Error::Data(format!("the name of '{}' {rule}", shown(path)))
        })
    };
    folders.map(name).collect()
}

/// The images of a split, and the other entries of its folders.
fn list(
    root: &Path,
    stamps: &[Stamp],
    classes: &[String],
    progress: &dyn Fn(Progress),
) -> Result<(Vec<Item>, Vec<PathBuf>)> {
    let split = root.join(&stamps[0].name);
    if stamps.len() == 1 {
        let place = shown(split);
        return Err(Error::Data(format!(
            "no class in '{place}'; make one folder per class there, with its images in it"
        )));
    }
    let mut others = entries(&split)?;
    others.retain(|(_, kind)| kind.is_none_or(|kind| !kind.is_dir()));
    let mut items = Vec::new();
    for (file, stamp) in (0..).zip(stamps).skip(1) {
        let place = root.join(&stamp.name);
        let what = format!("the folders in '{}'", shown(&split));
        progress(Progress::Files { what, done: file as usize, total: stamps.len() });
        let class = stamp.name.split_once('/').map_or("", |(_, class)| class);
        let label = classes.binary_search_by(|known| known.as_str().cmp(class));
        let label = label.map_err(|_| unknown(&place, class, classes))? as u32;
        let (files, rest): (Vec<_>, Vec<_>) = entries(&place)?.into_iter().partition(|(path, kind)| {
            let name = path.file_name().filter(|_| kind.is_some_and(|kind| kind.is_file()));
            name.is_some_and(|name| is_image(name.as_bytes()))
        });
        if files.is_empty() {
            let also = rest.first().map(|(path, _)| format!(", though '{}' lies there", shown(path)));
            return Err(Error::Data(format!(
                "no {} file in '{}'{}; a class needs at least one image",
                suffixes("or"),
                shown(&place),
                also.unwrap_or_default()
            )));
        }
        items.extend(files.into_iter().map(|(path, _)| Item { label, file, path }));
        others.extend(rest);
    }
    Ok((items, others.into_iter().map(|(path, _)| path).collect()))
}

fn unknown(place: &Path, class: &str, classes: &[String]) -> Error {
    if let Some(known) = classes.iter().find(|known| classes::is_same(known, class)) {
        let (place, forms) = (shown(place), classes::forms(class, known));
        let remedy = "rename one of the folders to the name of the other";
        return Error::Data(format!("'{place}' and the training images' class have one name {forms}; {remedy}"));
    }
    let known = classes.iter().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
    Error::Data(format!(
        "'{}' is a class that the training images lack (they have {known}{}); rename or remove it",
        shown(place),
        if classes.len() > 10 { ", ..." } else { "" }
    ))
}

/// A note with the number of other entries in a folder and the first names; `None` if there are none.
fn note(folder: &Path, others: &[PathBuf]) -> Option<String> {
    let name = |path: &PathBuf| {
        let name = shown(path.strip_prefix(folder).unwrap_or(path));
        // A listed entry that does not exist is a dangling link.
        if path.exists() { format!("'{name}'") } else { format!("'{name}' (a dead link)") }
    };
    let names: Vec<String> = others.iter().take(MOST_NAMES).map(name).collect();
    let more = others.len().saturating_sub(MOST_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (count, folder, read) = (others.len(), shown(folder), suffixes("and"));
    let entries = if count == 1 { "entry" } else { "entries" };
    let names = names.join(", ");
    (count > 0).then(|| {
        format!("{count} {entries} of '{folder}' left out: {names}{more}; only {read} files in class folders are read")
    })
}

fn suffixes(conjunction: &str) -> String {
    let (last, first) = SUFFIXES.split_last().expect("there are some");
    format!(".{} {conjunction} .{last}", first.join(", ."))
}

/// The entries of a folder but hidden ones, sorted by name, each with its type; a dead link has none.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, Option<FileType>)>> {
    let listed = fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let mut entries = Vec::new();
    for entry in listed {
        let entry = entry.map_err(Error::io("read", folder))?;
        if entry.file_name().as_bytes().starts_with(b".") {
            continue;
        }
        // The listing knows the type of everything but links.
        let kind = entry.file_type().ok().filter(|kind| !kind.is_symlink());
        let kind = kind.or_else(|| Some(fs::metadata(entry.path()).ok()?.file_type()));
        entries.push((entry.path(), kind));
    }
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(entries)
}
