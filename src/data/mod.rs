//! The data room: images, how they are varied, and batches of them.
//!
//! Read in this order: `config` (what the user chooses), `dataset` (images as bytes), the sources `cifar`, `folder` and
//! `synthetic` that fill it, then `key`, `augment`, `mixing` and `batch`, which turn it into batches. The room knows
//! no model, no device and no replica; which samples are seen when is the engine's to say.

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

/// How far a long piece of loading has come; drawn by the caller, who also decides how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Bytes arriving over the network.
    Bytes {
        /// The file being fetched.
        what: String,
        /// Bytes so far.
        done: u64,
        /// All of them, where the server says so.
        total: Option<u64>,
    },
    /// Files being read and decoded.
    Files {
        /// The folder they lie in.
        what: String,
        /// Files so far.
        done: usize,
        /// All of them.
        total: usize,
    },
}

/// Reads, draws or fetches the images that `config` names.
///
/// # Errors
/// When the data set is missing, damaged or cannot be fetched. Every message names the file and the remedy.
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

/// Images that are in memory, as squares of the size that is wanted.
fn in_squares(splits: DataSplits, config: &DataConfig) -> DataSplits {
    let framed = |images: Arc<ImageSet>, framing| {
        Arc::new(Arc::unwrap_or_clone(images).framed(config.image_size, framing, config.cache_mb))
    };
    DataSplits {
        train: framed(splits.train, Framing::varied(config)),
        validation: framed(splits.validation, Framing::steady(config)),
        ..splits
    }
}
