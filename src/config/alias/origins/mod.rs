//! What the command lines of other training scripts mean there, for `--as ORIGIN`.
//!
//! `table.rs` has an entry for each script, `values.rs` reads values of its words. Sources are the parsers of the
//! scripts in November 2026.

mod table;
mod values;

pub use table::ORIGINS;

use super::{Alias, Named, Sets as Settings, named};

/// A training script and what its options mean.
#[derive(Debug)]
pub struct Origin {
    /// What `--as` calls it.
    pub name: &'static str,
    /// Its script, in its repository.
    pub script: &'static str,
    pub batch: Batch,
    pub rate: Rate,
    /// Whether `--world-size` counts machines, with a replica on each of their devices.
    pub counts_machines: bool,
    /// The defaults of its options; later ones win.
    pub defaults: &'static [Settings],
    /// Further defaults of some networks, by the value of `--model`.
    pub networks: &'static [(&'static str, Settings)],
    /// Whether the decay of averaged weights is for an average in every step of a run with one image per step and
    /// epoch.
    pub scales_average: bool,
    /// Words that have another meaning elsewhere, or none.
    pub words: &'static [Alias],
    /// Words of this script alone, besides `words`, separated by spaces.
    pub signature: &'static str,
    /// Whether a bare word is the directory of the images.
    pub takes_directory: bool,
    /// A command in front of its options, which means nothing here.
    pub command: Option<&'static str>,
    /// Whether the weight decay is decoupled from the rate: of SGD, by a factor of the rate over its first value.
    pub decouples_decay: bool,
    /// What differs and cannot be set, each with the lines that it is about.
    pub differs: &'static [(About, &'static str)],
}

/// Command lines that something is about.
#[derive(Debug)]
pub enum About {
    All,
    /// Those with replicas that average the statistics of their batch-norm.
    Averages,
    /// Those whose network has a tag of weights, as in `resnet50.a1_in1k`.
    Tag,
    /// Those with this word.
    Word(&'static str),
}

/// The images that `--batch-size` counts. Shares of replicas are rounded down, as the scripts do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    OfReplica,
    OfMachine,
    OfAll,
}

/// What the learning rate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// The global batch, whatever its size.
    Final,
    /// The batch of a replica, as for Kiln.
    OfReplica,
    /// 256 images, if it is the default or was given by one of these options; otherwise [`Rate::Final`].
    Of256(&'static [&'static str]),
}

/// The origin that `--as` calls `name`.
pub fn find(name: &str) -> Option<&'static Origin> {
    ORIGINS.iter().find(|origin| origin.name == name)
}

impl Origin {
    pub(in crate::config) fn word(&self, name: &str) -> Option<Named> {
        named([self.words]).find(|(known, _)| *known == name)
    }
}
