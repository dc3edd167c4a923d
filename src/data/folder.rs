//! The user's own images: a folder per class below `train`, and below `val` or `test`.
//!
//! The layout is torchvision's ImageFolder. Classes are the sorted names of the folders of `train`, images the sorted
//! names of their files, so the data set is equal on every machine. Other files are reported in a note. If all images
//! fit into `cache_mb`, they are decoded once, in parallel, to one size. Otherwise, and for random crops, each is
//! decoded at every use, and all files are checked first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::Progress;
use super::config::DataConfig;
use super::dataset::{CHANNELS, DataSplits, ImageFiles, ImageSet, Normalization};
use super::decode::{self, SUFFIXES};
use super::framing::Framing;
use crate::error::{Error, Result};

/// Files decoded between two reports of progress.
const REPORT_EVERY: usize = 256;

/// Names listed in a note before it only counts the rest.
const MOST_NAMES: usize = 3;

/// The largest side that is accepted, in pixels.
const LARGEST: usize = 1024;

struct Item {
    path: PathBuf,
    label: u32,
}

/// Reads `dir/train` and `dir/val` (or `dir/test`), with every image framed as a square of `image_size` pixels.
///
/// # Errors
/// If a folder is missing or empty, if a class of the validation images is not in `train`, or if a file is not an image
/// or is truncated.
pub fn load(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<DataSplits> {
    if !(1..=LARGEST).contains(&config.image_size) {
        let size = config.image_size;
        return Err(Error::usage(format!("data.image_size must be 1 to {LARGEST} pixels, got '{size}'; 32 is usual")));
    }
    let train = config.dir.join("train");
    if !train.is_dir() {
        return Err(Error::Data(format!(
            "no folder '{}'; --data folder reads train/CLASS/*.jpg and val/CLASS/*.jpg below --data-dir, and \
             --data synthetic needs no files",
            train.display()
        )));
    }
    let validation = validation_folder(&config.dir)?;
    let classes = class_names(&train)?;
    let folders = [train, validation];
    let mut notes = Vec::new();
    let mut list = |folder: &Path| {
        let Listing { items, others } = Listing::of(folder, &classes)?;
        notes.extend(note(folder, &others));
        Ok::<_, Error>(items)
    };
    let [train, validation] = [list(&folders[0])?, list(&folders[1])?];
    let bytes = (train.len() + validation.len()) as u64 * (CHANNELS * config.image_size * config.image_size) as u64;
    let cached = bytes <= config.cache_mb << 20;
    let load = |items: Vec<Item>, folder: &Path, framing: Framing| {
        let (identity, size) = (identity(&items)?, [config.image_size; 2]);
        let labels = items.iter().map(|item| item.label).collect();
        let report = |done, total| progress(Progress::Files { what: folder.display().to_string(), done, total });
        if !cached || framing.is_random() {
            // A bad file should be found now, not in the middle of a run.
            each_in_parallel(&items, &mut vec![(); items.len()], 1, |item, _| decode::check(&item.path), report)?;
            let paths = items.into_iter().map(|item| item.path).collect();
            let files = ImageFiles { paths, side: config.image_size, framing };
            return ImageSet::on_disk(files, labels, classes.clone(), identity);
        }
        let stride = CHANNELS * config.image_size * config.image_size;
        let mut pixels = vec![0; items.len() * stride];
        let show = |item: &Item, out: &mut [u8]| framing.show_file(&item.path, config.image_size, None, out);
        each_in_parallel(&items, &mut pixels, stride, show, report)?;
        Ok(ImageSet::new(pixels, labels, classes.clone(), size)?.with_identity(identity))
    };
    Ok(DataSplits {
        train: Arc::new(load(train, &folders[0], Framing::for_training(config))?),
        validation: Arc::new(load(validation, &folders[1], Framing::for_validation(config))?),
        normalization: Normalization::IMAGENET,
        notes,
    })
}

/// The content of the fingerprint in place of pixels, whether decoded or not: every file's name and length.
fn identity(items: &[Item]) -> Result<Vec<u8>> {
    let length = |item: &Item| Ok(std::fs::metadata(&item.path).map_err(Error::io("read", &item.path))?.len());
    let lengths: Vec<Result<u64>> = items.par_iter().map(length).collect();
    let mut hash = Sha256::new();
    for (item, length) in items.iter().zip(lengths) {
        let length = length?;
        hash.update(name(&item.path).unwrap_or_default());
        hash.update([0]);
        hash.update(length.to_le_bytes());
    }
    Ok(hash.finalize().to_vec())
}

fn validation_folder(dir: &Path) -> Result<PathBuf> {
    let found = ["val", "test"].map(|name| dir.join(name)).into_iter().find(|folder| folder.is_dir());
    found.ok_or_else(|| {
        Error::Data(format!(
            "no folder 'val' or 'test' in '{}'; --data folder needs images to validate on beside 'train'",
            dir.display()
        ))
    })
}

/// The sorted names of the folders in `folder`.
fn class_names(folder: &Path) -> Result<Vec<String>> {
    let names: Vec<String> =
        entries(folder)?.iter().filter(|path| path.is_dir()).filter_map(|path| name(path)).collect();
    if names.is_empty() {
        let place = folder.display();
        return Err(Error::Data(format!(
            "no class in '{place}'; make one folder per class there, with its images in it"
        )));
    }
    Ok(names)
}

/// The content of a split's class folders.
#[derive(Default)]
struct Listing {
    items: Vec<Item>,
    others: Vec<PathBuf>,
}

impl Listing {
    fn of(folder: &Path, classes: &[String]) -> Result<Self> {
        let mut listing = Self::default();
        listing.others.extend(entries(folder)?.into_iter().filter(|path| !path.is_dir()));
        for class in class_names(folder)? {
            let place = folder.join(&class);
            let label = classes.binary_search(&class).map_err(|_| unknown(&place, classes))?;
            let (files, others): (Vec<_>, Vec<_>) =
                entries(&place)?.into_iter().partition(|path| path.is_file() && is_image(path));
            if files.is_empty() {
                let also = others.first().map(|path| format!(", though '{}' lies there", path.display()));
                return Err(Error::Data(format!(
                    "no {} file in '{}'{}; a class needs at least one image",
                    suffixes("or"),
                    place.display(),
                    also.unwrap_or_default()
                )));
            }
            listing.items.extend(files.into_iter().map(|path| Item { path, label: label as u32 }));
            listing.others.extend(others);
        }
        Ok(listing)
    }
}

fn unknown(place: &Path, classes: &[String]) -> Error {
    let known = classes.iter().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
    Error::Data(format!(
        "'{}' is a class that the training images lack (they have {known}{}); rename or remove it",
        place.display(),
        if classes.len() > 10 { ", ..." } else { "" }
    ))
}

/// A note with the number of other entries in a folder and the first names; `None` if there are none.
fn note(folder: &Path, others: &[PathBuf]) -> Option<String> {
    let name = |path: &PathBuf| {
        let name = path.strip_prefix(folder).unwrap_or(path).display();
        // A listed entry that does not exist is a dangling link.
        if path.exists() { format!("'{name}'") } else { format!("'{name}' (a dead link)") }
    };
    let shown: Vec<String> = others.iter().take(MOST_NAMES).map(name).collect();
    let more = others.len().saturating_sub(MOST_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (count, folder, read) = (others.len(), folder.display(), suffixes("and"));
    let entries = if count == 1 { "entry" } else { "entries" };
    let names = shown.join(", ");
    (count > 0).then(|| {
        format!("{count} {entries} of '{folder}' left out: {names}{more}; only {read} files in class folders are read")
    })
}

fn suffixes(conjunction: &str) -> String {
    let (last, first) = SUFFIXES.split_last().expect("there are some");
    format!(".{} {conjunction} .{last}", first.join(", ."))
}

/// The entries of a folder but hidden ones, sorted by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let paths: std::io::Result<Vec<PathBuf>> = listed.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(Error::io("read", folder))?;
    paths.retain(|path| name(path).is_some_and(|name| !name.starts_with('.')));
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    SUFFIXES.iter().any(|known| extension == *known)
}

/// Calls `work` with every item and its `stride` elements of `out`; returns the error of the first item that fails.
fn each_in_parallel<T: Send>(
    items: &[Item],
    out: &mut [T],
    stride: usize,
    work: impl Fn(&Item, &mut [T]) -> Result<()> + Sync,
    report: impl Fn(usize, usize),
) -> Result<()> {
    let parts = items.chunks(REPORT_EVERY).zip(out.chunks_mut(REPORT_EVERY * stride));
    for (part, (items_of_part, out)) in parts.enumerate() {
        let each = items_of_part.par_iter().zip(out.par_chunks_exact_mut(stride));
        let outcomes: Vec<Result<()>> = each.map(|(item, out)| work(item, out)).collect();
        outcomes.into_iter().collect::<Result<()>>()?;
        report(part * REPORT_EVERY + items_of_part.len(), items.len());
    }
    Ok(())
}
