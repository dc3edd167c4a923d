//! Images of your own: a folder per class below `train`, and below `val` or `test`.
//!
//! The layout is the one torchvision calls ImageFolder. Classes are the sorted names of the folders of `train`, images
//! the sorted names of their JPEG and PNG files, so the data set is the same on every machine. Where all images fit into
//! `cache_mb`, they are decoded once, in parallel, to bytes of one size; else, and where random parts of them are shown,
//! each is decoded whenever it is needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::Progress;
use super::config::DataConfig;
use super::dataset::{CHANNELS, DataSplits, ImageFiles, ImageSet, Normalization};
use super::framing::Framing;
use crate::error::{Error, Result};

/// Files decoded between two reports of progress.
const REPORT_EVERY: usize = 256;

/// The largest side that is accepted, in pixels.
const LARGEST: usize = 1024;

/// One image file and its class.
struct Item {
    path: PathBuf,
    label: u32,
}

/// Reads `dir/train` and `dir/val` (or `dir/test`), every image made a square of `image_size` pixels.
///
/// # Errors
/// When a folder is missing or empty, when a class of the validation images is not one of `train`, or when a file is no
/// image.
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
    let [train, validation] = [list(&folders[0], &classes)?, list(&folders[1], &classes)?];
    let bytes = (train.len() + validation.len()) as u64 * (CHANNELS * config.image_size * config.image_size) as u64;
    let cached = bytes <= config.cache_mb << 20;
    let load = |items: Vec<Item>, folder: &Path, framing: Framing| {
        let (identity, size) = (identity(&items)?, [config.image_size; 2]);
        let labels = items.iter().map(|item| item.label).collect();
        if !cached || framing.is_random() {
            let paths = items.into_iter().map(|item| item.path).collect();
            let files = ImageFiles { paths, side: config.image_size, framing };
            return ImageSet::on_disk(files, labels, classes.clone(), identity);
        }
        let what = folder.display().to_string();
        let pixels = decode_all(&items, config.image_size, framing, |done, total| {
            progress(Progress::Files { what: what.clone(), done, total });
        })?;
        Ok(ImageSet::new(pixels, labels, classes.clone(), size)?.with_identity(identity))
    };
    Ok(DataSplits {
        train: Arc::new(load(train, &folders[0], Framing::varied(config))?),
        validation: Arc::new(load(validation, &folders[1], Framing::steady(config))?),
        normalization: Normalization::IMAGENET,
    })
}

/// What a fingerprint tells this set by beside its labels, decoded or not: every file's name and length.
fn identity(items: &[Item]) -> Result<Vec<u8>> {
    let mut hash = Sha256::new();
    for item in items {
        let length = std::fs::metadata(&item.path).map_err(Error::io("read", &item.path))?.len();
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

/// The image files of every class folder, by class and name.
fn list(folder: &Path, classes: &[String]) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for class in class_names(folder)? {
        let place = folder.join(&class);
        let label = classes.binary_search(&class).map_err(|_| {
            let known = classes.iter().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
            Error::Data(format!(
                "'{}' is a class that the training images lack (they have {known}{}); rename or remove it",
                place.display(),
                if classes.len() > 10 { ", ..." } else { "" }
            ))
        })?;
        let files: Vec<PathBuf> =
            entries(&place)?.into_iter().filter(|path| path.is_file() && is_image(path)).collect();
        if files.is_empty() {
            return Err(Error::Data(format!(
                "no .jpg, .jpeg or .png file in '{}'; a class needs at least one image",
                place.display()
            )));
        }
        items.extend(files.into_iter().map(|path| Item { path, label: label as u32 }));
    }
    Ok(items)
}

/// Everything in a folder but hidden entries, sorted by name.
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
    ["jpg", "jpeg", "png"].iter().any(|known| extension == *known)
}

/// Decodes every item; the first failure, in the order of the items, ends it.
fn decode_all(items: &[Item], side: usize, framing: Framing, report: impl Fn(usize, usize)) -> Result<Vec<u8>> {
    let stride = CHANNELS * side * side;
    let mut pixels = vec![0; items.len() * stride];
    let parts = items.chunks(REPORT_EVERY).zip(pixels.chunks_mut(REPORT_EVERY * stride));
    for (part, (items_of_part, out)) in parts.enumerate() {
        let each = items_of_part.par_iter().zip(out.par_chunks_exact_mut(stride));
        let outcomes: Vec<Result<()>> =
            each.map(|(item, out)| framing.show_file(&item.path, side, None, out)).collect();
        outcomes.into_iter().collect::<Result<()>>()?;
        report(part * REPORT_EVERY + items_of_part.len(), items.len());
    }
    Ok(pixels)
}
