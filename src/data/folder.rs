//! Images of your own: a folder per class below `train`, and below `val` or `test`.
//!
//! The layout is the one torchvision calls ImageFolder. Classes are the sorted names of the folders of `train`, images
//! the sorted names of their JPEG and PNG files, so the data set is the same on every machine. All images are decoded
//! once, in parallel, to bytes of one size; reading from disk during training is left out on purpose.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::imageops::FilterType;
use rayon::prelude::*;

use super::Progress;
use super::config::DataConfig;
use super::dataset::{CHANNELS, DataSplits, ImageSet, Normalization};
use crate::error::{Error, Result};

/// Files decoded between two reports of progress.
const REPORT_EVERY: usize = 256;

/// The largest side that is accepted, in pixels: all images are held in memory.
const LARGEST: usize = 1024;

/// One image file and its class.
struct Item {
    path: PathBuf,
    label: u32,
}

/// Reads `dir/train` and `dir/val` (or `dir/test`), every image resized to `image_size` squared.
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
    let load = |folder: &Path| {
        let items = list(folder, &classes)?;
        let what = folder.display().to_string();
        let (pixels, labels) = decode_all(&items, config.image_size, |done, total| {
            progress(Progress::Files { what: what.clone(), done, total });
        })?;
        ImageSet::new(pixels, labels, classes.clone(), [config.image_size; 2])
    };
    Ok(DataSplits {
        train: Arc::new(load(&train)?),
        validation: Arc::new(load(&validation)?),
        normalization: Normalization::IMAGENET,
    })
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
fn decode_all(items: &[Item], side: usize, report: impl Fn(usize, usize)) -> Result<(Vec<u8>, Vec<u32>)> {
    let stride = CHANNELS * side * side;
    let mut pixels = vec![0; items.len() * stride];
    let parts = items.chunks(REPORT_EVERY).zip(pixels.chunks_mut(REPORT_EVERY * stride));
    for (part, (items_of_part, out)) in parts.enumerate() {
        let each = items_of_part.par_iter().zip(out.par_chunks_exact_mut(stride));
        let outcomes: Vec<Result<()>> = each.map(|(item, out)| decode(&item.path, side, out)).collect();
        outcomes.into_iter().collect::<Result<()>>()?;
        report(part * REPORT_EVERY + items_of_part.len(), items.len());
    }
    Ok((pixels, items.iter().map(|item| item.label).collect()))
}

/// Decodes one file to planes of red, green and blue.
fn decode(path: &Path, side: usize, out: &mut [u8]) -> Result<()> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let image = image::load_from_memory(&bytes).map_err(|reason| {
        let kind = if path.extension().is_some_and(|it| it.eq_ignore_ascii_case("png")) { "PNG" } else { "JPEG" };
        Error::Data(format!("'{}' is not a {kind}: {reason}; replace or remove it", path.display()))
    })?;
    let mut image = image.into_rgb8();
    if image.dimensions() != (side as u32, side as u32) {
        image = image::imageops::resize(&image, side as u32, side as u32, FilterType::Triangle);
    }
    for (index, pixel) in image.pixels().enumerate() {
        for (channel, value) in pixel.0.into_iter().enumerate() {
            out[channel * side * side + index] = value;
        }
    }
    Ok(())
}
