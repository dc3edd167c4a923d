//! The data room: images, augmentation and batches.
//!
//! Read in this order: `config`, `dataset` (images as bytes), its sources `cifar`, `folder` and `synthetic`, then
//! `key`, `augment`, `mixing` and `batch`. The room knows no model, device or replica; the engine decides the order of
//! samples.

pub mod augment;
pub mod batch;
pub mod cifar;
pub mod config;
pub mod dataset;
mod decode;
pub mod download;
pub mod erase;
pub mod folder;
mod framing;
pub mod key;
mod members;
pub mod mixing;
mod pickle;
mod pixel_ops;
mod program;
pub mod rand_augment;
pub mod rectangle;
pub mod synthetic;

pub use augment::Augment;
pub use batch::{HostBatch, Partners, assemble};
pub use config::{CropFill, DataConfig, NormalizationKind, Source};
pub use dataset::{CHANNELS, DataSplits, ImageSet, Normalization, Picture, fingerprint};
pub(crate) use decode::to_image;
pub use erase::RandomErasing;
pub use framing::{Framing, Part};
pub use key::{Key, Purpose};
pub use mixing::{Mix, Mixing};
pub use rand_augment::{Operation, RandAugment};
pub use rectangle::Rectangle;

use std::sync::Arc;

use crate::error::Result;

/// Progress of loading, which the caller displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Bytes arriving over the network.
    Bytes {
        /// The file being fetched.
        what: String,
        /// Bytes so far.
        done: u64,
        /// Total bytes, if the server reports it.
        total: Option<u64>,
    },
    /// Files being read and decoded.
    Files {
        /// Their folder.
        what: String,
        /// Files so far.
        done: usize,
        /// Total files.
        total: usize,
    },
}

/// Reads, draws or fetches the configured images.
///
/// # Errors
/// If the data set is missing, damaged or cannot be fetched. Every message names the file and the remedy.
pub fn load(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<DataSplits> {
    let splits = match config.source {
        Source::Cifar10 => in_squares(cifar::load(&cifar::CIFAR10, config, progress)?, config),
        Source::Cifar100 => in_squares(cifar::load(&cifar::CIFAR100, config, progress)?, config),
        Source::Folder => folder::load(config, progress)?,
        Source::Synthetic => in_squares(synthetic::load(config)?, config),
    };
    Ok(DataSplits {
        normalization: match config.normalization {
            NormalizationKind::Dataset => splits.normalization,
            NormalizationKind::Imagenet => Normalization::IMAGENET,
        },
        ..splits
    })
}

/// Images in memory, framed as squares of the configured size.
fn in_squares(splits: DataSplits, config: &DataConfig) -> DataSplits {
    let framed = |images: Arc<ImageSet>, framing| {
        Arc::new(Arc::unwrap_or_clone(images).framed(config.image_size, framing, config.cache_mb))
    };
    DataSplits {
        train: framed(splits.train, Framing::for_training(config)),
        validation: framed(splits.validation, Framing::for_validation(config)),
        ..splits
    }
}
