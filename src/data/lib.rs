//! Images from files, folders, shards, Parquet files and packs; augmentation and batches, with the same bits
//! everywhere.
//!
//! Read in this order: `normalization`, `config`, `dataset` (images as bytes), its sources `cifar` (with `pickle`,
//! which reads files of PyTorch, too) and `synthetic`; `samples` (encoded images, wherever they are stored), its
//! sources `folder`, `shards`, `parquet` and `pack`, with `classes` and an `index` each, and `splits`; `store` and
//! `remote` say where files are; then `key`, `augment`, `mixing` and `batch`. This crate knows no network or device;
//! the engine decides the order of samples.

pub mod augment;
pub mod auto_augment;
pub mod batch;
mod braces;
pub mod cifar;
mod classes;
mod color_jitter;
pub mod config;
pub mod dataset;
mod decode;
pub mod erase;
mod exif;
mod folder;
mod found_samples;
mod framing;
mod index;
mod integer;
mod interpolation;
mod jpeg;
mod members;
pub mod mixing;
mod names;
mod normalization;
mod pack;
#[cfg(feature = "parquet")]
mod parquet;
pub mod pickle;
mod pixel_ops;
pub mod rectangle;
#[cfg(feature = "remote")]
mod remote;
mod resample;
pub mod sample_key;
mod samples;
mod shard_files;
mod shards;
mod splits;
mod store;
pub mod synthetic;
mod tar;

pub use augment::Augment;
pub use auto_augment::{AutoAugment, Operation, rand_augment};
pub use batch::{HostBatch, Partners, assemble};
pub use color_jitter::ColorJitter;
pub use config::{Corrupt, CropFill, DataConfig, Decode, ErasingFill, Exif, Order, Source};
pub use dataset::{CHANNELS, DataSplits, ImageSet, Picture, fingerprint};
pub use decode::is_decoding;
pub use decode::{SUFFIXES, is_image, to_image};
pub use erase::RandomErasing;
pub use framing::Framing;
pub use interpolation::{Interpolation, TrainInterpolation};
pub use mixing::{Mixing, own_share};
pub use normalization::{Normalization, NormalizationKind};
pub use pack::Recipe;
pub use rectangle::Rectangle;
pub use resample::CropBox;
pub use sample_key::{Purpose, SampleKey};
pub use samples::Need;

use std::path::Path;
use std::sync::Arc;

use kiln_objects::{is_url, local};
use kiln_system::{Error, Result, shown};

use self::folder::Folder;
use self::pack::Pack;
use self::samples::Samples;
use self::shards::Shards;

/// Progress of loading, which the caller displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    Bytes {
        /// The file being fetched.
        what: String,
        done: u64,
        /// Total bytes, if the server reports it.
        total: Option<u64>,
    },
    /// What is about to be done, in words.
    Line(String),
    Files {
        /// Their folder.
        what: String,
        done: usize,
        total: usize,
    },
}

/// Reads, draws or fetches the configured images.
///
/// # Errors
/// If the data set is missing, damaged or cannot be fetched. Every message names the file and the remedy.
pub fn load(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<DataSplits> {
    loaded(config, false, progress)
}

/// As [`load`], but Parquet files that a run would convert are only read, and their images are black.
pub fn survey(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<DataSplits> {
    loaded(config, true, progress)
}

fn loaded(config: &DataConfig, is_dry: bool, progress: &dyn Fn(Progress)) -> Result<DataSplits> {
    let config = &DataConfig { dir: local(&config.dir), ..config.clone() };
    let splits = match config.source {
        Source::Cifar10 => in_squares(cifar::load(&cifar::CIFAR10, config, progress)?, config),
        Source::Cifar100 => in_squares(cifar::load(&cifar::CIFAR100, config, progress)?, config),
        Source::Folder => splits::splits(Arc::new(Folder::open(config, progress)?), config, progress)?,
        Source::Webdataset => splits::splits(shards(config, progress)?, config, progress)?,
        Source::Parquet => splits::splits(parquet(config, is_dry, progress)?, config, progress)?,
        Source::Pack => splits::splits(Arc::new(Pack::open(config)?), config, progress)?,
        Source::Synthetic => in_squares(synthetic::load(config)?, config),
    };
    Ok(DataSplits {
        normalization: match config.normalization {
            NormalizationKind::Dataset => splits.normalization,
            NormalizationKind::Imagenet => Normalization::IMAGENET,
            NormalizationKind::Given(constants) => constants,
        },
        ..splits
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    pub images: usize,
    pub bytes: u64,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// Writes a pack of the images in `config.dir`: a folder of images, shards, Parquet files, or another pack.
pub fn pack(config: &DataConfig, recipe: Option<Recipe>, output: &Path, progress: &dyn Fn(Progress)) -> Result<Packed> {
    let config = &DataConfig { dir: local(&config.dir), ..config.clone() };
    let source = &config.dir;
    if !is_url(source) && shard_files::PARQUET.are_in(source)? {
        #[cfg(feature = "parquet")]
        return parquet::Parquet::find(config, progress)?.pack(recipe, output);
        #[cfg(not(feature = "parquet"))]
        return Err(unread(config));
    }
    for (flag, column) in [("--image-column", &config.image_column), ("--label-column", &config.label_column)] {
        if !column.is_empty() {
            let source = shown(source);
            return Err(Error::usage(format!("{flag} is for Parquet files, and '{source}' has none; leave it out")));
        }
    }
    let samples: Arc<dyn Samples> = if is_url(source) || shard_files::TAR.are_in(source)? {
        shards(config, progress)?
    } else if source.is_file() {
        Arc::new(Pack::open(config)?)
    } else {
        Arc::new(Folder::open(config, progress)?)
    };
    let (images, notes) = (samples.index().len(), samples.index().head.notes.clone());
    if images == 0 {
        return Err(pack::nothing(config, &notes));
    }
    Ok(Packed { images, bytes: pack::write(&*samples, recipe, output, progress)?, notes })
}

/// The shards in `config.dir`; those of an object store are read ahead.
fn shards(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<Arc<dyn Samples>> {
    let shards = Arc::new(Shards::open(config, progress)?);
    #[cfg(feature = "remote")]
    if is_url(&config.dir) {
        return Ok(Arc::new(remote::Prefetcher::new(shards.store.clone(), shards, config)?));
    }
    Ok(shards)
}

/// The images of the Parquet files in `config.dir`.
#[cfg(feature = "parquet")]
fn parquet(config: &DataConfig, is_dry: bool, progress: &dyn Fn(Progress)) -> Result<Arc<dyn Samples>> {
    parquet::Parquet::find(config, progress)?.open(is_dry)
}

#[cfg(not(feature = "parquet"))]
fn parquet(config: &DataConfig, _is_dry: bool, _progress: &dyn Fn(Progress)) -> Result<Arc<dyn Samples>> {
    Err(unread(config))
}

#[cfg(not(feature = "parquet"))]
fn unread(config: &DataConfig) -> Error {
    let dir = shown(&config.dir);
    Error::usage(format!("'{dir}' has Parquet files, which this build cannot read; build with --features parquet"))
}

/// Images in memory, framed as squares of the configured size.
fn in_squares(([train, validation], normalization): ([ImageSet; 2], Normalization), config: &DataConfig) -> DataSplits {
    let side = config.validation_side();
    DataSplits {
        train: train.framed(config.image_size, Framing::for_training(config), config.cache_mb).into(),
        validation: validation.framed(side, Framing::for_validation(config), config.cache_mb).into(),
        normalization,
        small_side: None,
        left_out: 0,
        notes: Vec::new(),
    }
}
