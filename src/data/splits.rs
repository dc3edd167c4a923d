//! Splits of encoded images: decoded once, in parallel, if all of them fit into `cache_mb` and show no random part;
//! otherwise each is read and decoded at every use.

use std::ops::Range;
use std::sync::Arc;

use kiln_system::{Error, Result, shown};

use super::Progress;
use super::config::{DataConfig, Decode, Exif, Order};
use super::dataset::{CHANNELS, DataSplits, ImageSet};
use super::decode::decode;
use super::framing::Framing;
use super::index::Index;
use super::normalization::Normalization;
use super::samples::{Encoded, Need, REPORT_EVERY, Samples, decoded, in_parallel};

/// How many images are looked at to see whether a set is one of small images.
const LOOKS: usize = 16;
/// The largest side of a small image, in pixels, and the most bytes of one.
const SMALL: (usize, u32) = (64, 1 << 15);

/// Both splits of a source, with every image framed as a square of the configured size.
pub(super) fn splits(
    samples: Arc<dyn Samples>,
    config: &DataConfig,
    progress: &dyn Fn(Progress),
) -> Result<DataSplits> {
    let side = config.image_size.max(config.validation_side());
    let bytes = (samples.index().len() * CHANNELS * side * side) as u64;
    let cached = bytes <= config.cache_mb << 20;
    let [training, validation] = samples.index().splits();
    for (ids, what) in [(&training, "training"), (&validation, "validation")] {
        if ids.is_empty() {
            return Err(Error::Data(format!("'{}' has no images for {what}; add some", shown(&config.dir))));
        }
    }
    let split = |ids: Range<usize>, name: &str, side: usize, framing: Framing| {
        let report = |done, total| {
            progress(Progress::Files { what: shown(config.dir.join(name)), done, total });
        };
        let keeps = cached && !framing.is_random();
        set(&samples, ids, side, framing, keeps.then_some(&report))
    };
    let is_enlarged = config.image_size > SMALL.0;
    let small_side = is_enlarged.then(|| small_side(&*samples, training.clone())).flatten();
    let shards = if config.order == Order::Window { training.clone() } else { 0..0 };
    let mut train = split(training, "train", config.image_size, Framing::for_training(config))?;
    train.shards = shards.map(|id| samples.index().file_number(id)).collect();
    Ok(DataSplits {
        train: train.into(),
        validation: split(validation, "val", config.validation_side(), Framing::for_validation(config))?.into(),
        normalization: Normalization::IMAGENET,
        small_side,
        left_out: samples.index().head.left_out.unwrap_or_default(),
        notes: samples.index().head.notes.clone(),
    })
}

/// The largest side of some of the images `ids`, if all of these are small. Their bytes show most other sets unread.
fn small_side(samples: &dyn Samples, ids: Range<usize>) -> Option<usize> {
    let looked: Vec<usize> = ids.clone().step_by(ids.len().div_ceil(LOOKS).max(1)).collect();
    if looked.iter().any(|id| samples.index().length(*id) > SMALL.1) {
        return None;
    }
    let side = |id: usize| {
        let image = decoded(samples, id, |bytes, name| decode(bytes, name, Exif::Ignore)).ok()?;
        Some(image.width().max(image.height()) as usize).filter(|side| *side <= SMALL.0)
    };
    looked.into_iter().try_fold(0, |largest, id| Some(side(id)?.max(largest)))
}

/// What binds a run: which samples, and how they are decoded.
fn identity(index: &Index, ids: Range<usize>, framing: Framing) -> Vec<u8> {
    let how: &[u8] = match framing.decode {
        Decode::Whole => b"",
        Decode::Part => b"part",
        Decode::Scaled => b"scaled",
    };
    [&index.identity(ids), how].concat()
}

/// The samples `ids` as a set; decoded now if there is a `report` of that.
fn set(
    samples: &Arc<dyn Samples>,
    ids: Range<usize>,
    side: usize,
    framing: Framing,
    report: Option<&impl Fn(usize, usize)>,
) -> Result<ImageSet> {
    let index = samples.index();
    let (labels, identity) = (ids.clone().map(|id| index.label(id)).collect(), identity(index, ids.clone(), framing));
    let classes = index.head.classes.clone();
    let encoded = Encoded { samples: samples.clone(), at: ids.start, framing };
    let Some(report) = report else { return ImageSet::encoded(encoded, side, labels, classes, identity) };
    let stride = CHANNELS * side * side;
    let mut pixels = vec![0; ids.len() * stride];
    let parts: Vec<(usize, &mut [u8])> = pixels.chunks_exact_mut(stride).enumerate().collect();
    let all = Need { ids: ids.map(|id| id as u32).collect(), ..Need::default() };
    let _foresight = samples.clone().foresee(Box::new(std::iter::once(all)));
    in_parallel(parts, REPORT_EVERY, 0, |(id, out)| encoded.sample(id).show(side, None, out), report)?;
    let mut images = ImageSet::new(pixels, labels, classes, [side; 2])?;
    images.identity = identity;
    Ok(images)
}
