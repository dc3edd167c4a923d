//! Encoded images with their classes: the seam between a data set and where it is stored.
//!
//! A source brings an index and the bytes of any sample; here are what all sources share, decoding and the search for
//! damage. `splits.rs` makes sets of images of them.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use kiln_engine::parallel::Foresight;
use kiln_system::{Error, Result};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use super::config::{Corrupt, DataConfig, Exif};
use super::decode::{LARGEST, decode, has_both_ends};
use super::framing::Framing;
use super::index::Index;
use super::sample_key::SampleKey;

/// Images between two reports of progress.
pub(super) const REPORT_EVERY: usize = 256;

/// The largest side that is accepted, in pixels.
const WIDEST: usize = 1024;

/// Samples that are read together.
#[derive(Debug, Clone, Default)]
pub struct Need {
    /// From 0.
    pub epoch: usize,
    /// Their ids; one appears as often as it is read.
    pub ids: Vec<u32>,
    /// Whether the same order comes again in every epoch.
    pub is_validation: bool,
}

pub(super) trait Samples: Debug + Send + Sync {
    fn index(&self) -> &Index;

    /// The encoded image.
    fn bytes(&self, id: usize) -> Result<Cow<'_, [u8]>>;

    /// The encoded image from where it comes from, after what [`Samples::bytes`] gave was found damaged; `None` if that
    /// is the same.
    fn bytes_again(&self, _id: usize) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Where the sample lies, for messages, as in `'data/train/cat/a.jpg'`.
    fn place(&self, id: usize) -> String;

    /// Announces the samples that will be read, in order, for as long as the answer is kept.
    fn foresee(self: Arc<Self>, _needs: Box<dyn Iterator<Item = Need> + Send>) -> Option<Foresight> {
        None
    }
}

/// One sample of a source, or the first of a split, and how it is shown.
#[derive(Debug, Clone)]
pub(super) struct Encoded {
    pub(super) samples: Arc<dyn Samples>,
    pub(super) at: usize,
    pub(super) framing: Framing,
}

impl PartialEq for Encoded {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.samples, &other.samples) && (self.at, self.framing) == (other.at, other.framing)
    }
}

impl Encoded {
    pub(super) fn sample(&self, id: usize) -> Self {
        Self { at: self.at + id, ..self.clone() }
    }

    /// Fills `out` with the planes `[3, side, side]`; random parts need a `key`.
    pub(super) fn show(&self, side: usize, key: Option<SampleKey>, out: &mut [u8]) -> Result<()> {
        decoded(&*self.samples, self.at, |bytes, name| self.framing.show_encoded((bytes, name), side, key, out))
    }
}

/// What `decode` makes of the bytes of a sample and its name.
///
/// # Errors
/// If it cannot be read, or the error of `decode`, the second half of a sentence.
pub(super) fn decoded<T>(
    samples: &dyn Samples,
    id: usize,
    mut decode: impl FnMut(&[u8], &[u8]) -> std::result::Result<T, String>,
) -> Result<T> {
    let mut read = |bytes: &[u8]| decode(bytes, &samples.index().name(id));
    let outcome = match read(&samples.bytes(id)?) {
        Err(fault) => samples.bytes_again(id)?.map_or(Err(fault), |bytes| read(&bytes)),
        whole => whole,
    };
    outcome.map_err(|fault| damaged(&format!("{} {fault}", samples.place(id))))
}

pub(super) fn damaged(what: &str) -> Error {
    Error::Data(format!(
        "{what}; replace or remove it, or leave such images out with data.corrupt=skip (train pack: --skip-corrupt)"
    ))
}

/// Looks for damage in an image of `length` bytes, which `read` gives from any position: at both ends, or everywhere if
/// damaged images are to be left out. Returns the second half of a sentence about it.
pub(super) fn fault(
    read: impl Fn(&mut [u8], u64) -> std::io::Result<()>,
    length: u64,
    name: &[u8],
    corrupt: Corrupt,
) -> std::io::Result<Option<String>> {
    if length > LARGEST {
        return Ok(Some(format!("has '{length}' bytes, more than {} MiB", LARGEST >> 20)));
    }
    if corrupt == Corrupt::Refuse && has_both_ends(&read, length)? {
        return Ok(None);
    }
    let mut bytes = vec![0; length as usize];
    read(&mut bytes, 0)?;
    Ok(decode(&bytes, name, Exif::Ignore).err())
}

/// Does `work` for every item, `part` of them between two reports, on at least `threads` threads; returns the results
/// in order, or the error of the first item that fails.
pub(super) fn in_parallel<T: Send, R: Send>(
    items: Vec<T>,
    part: usize,
    threads: usize,
    work: impl Fn(T) -> Result<R> + Sync,
    report: impl Fn(usize, usize),
) -> Result<Vec<R>> {
    let total = items.len();
    let mut results = Vec::with_capacity(total);
    let mut items = items.into_iter();
    // Work that waits for a network needs more threads than processors.
    let wide = (threads > rayon::current_num_threads()).then(|| ThreadPoolBuilder::new().num_threads(threads).build());
    let wide = wide.and_then(|pool| pool.ok());
    loop {
        let part: Vec<T> = items.by_ref().take(part).collect();
        if part.is_empty() {
            return Ok(results);
        }
        let all = || part.into_par_iter().map(&work).collect();
        let outcomes: Vec<Result<R>> = if let Some(pool) = &wide { pool.install(all) } else { all() };
        for outcome in outcomes {
            results.push(outcome?);
        }
        report(results.len(), total);
    }
}

/// Refuses a size of images that is not possible.
pub(super) fn check_side(config: &DataConfig) -> Result<()> {
    let sides = [("data.image_size", config.image_size), ("data.val_image_size", config.validation_side())];
    match sides.into_iter().find(|(_, side)| !(1..=WIDEST).contains(side)) {
        Some((key, side)) => {
            Err(Error::usage(format!("{key} must be 1 to {WIDEST} pixels, got '{side}'; 32 is usual")))
        }
        None => Ok(()),
    }
}
