//! The options of `train pack`.

use std::path::PathBuf;

use clap::Args;
use kiln_data::{Corrupt, DataConfig, Exif, Recipe};
use kiln_system::Result;

use super::refusal::whole;
use crate::trainer::pack;

#[derive(Debug, Args)]
pub struct Pack {
    /// Images: a folder with train/CLASS/IMAGE and val/CLASS/IMAGE, tar shards, Parquet files, a pattern for either, or
    /// another pack.
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// File to write; --data pack --data-dir FILE reads it.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Shrink images to at most this many pixels on the longer side; without it they keep their size.
    #[arg(long, value_name = "PIXELS", value_parser = whole::<u32>(1..=65535))]
    side: Option<u32>,
    /// Share of images to encode as JPEGs, as in 10%; the others become plain pixels, which are larger and need no
    /// decoding. With neither this nor --side, images are copied unchanged; with --side alone, all become JPEGs.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    jpeg: Option<f64>,
    /// Turn images upright by their EXIF orientation, and encode them again.
    #[arg(long)]
    apply_exif: bool,
    /// Skip damaged images instead of refusing them.
    #[arg(long)]
    skip_corrupt: bool,
    /// Column of images in Parquet files; without it the first of the usual names that exists.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    image_column: String,
    /// Column of classes in Parquet files; without it the first of the usual names that exists.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    label_column: String,
}

impl Pack {
    pub(super) fn run(self) -> Result<u8> {
        let Self { source, output, side, jpeg, apply_exif, skip_corrupt, image_column, label_column } = self;
        let anew = side.is_some() || jpeg.is_some() || apply_exif;
        let exif = if apply_exif { Exif::Apply } else { Exif::Ignore };
        let recipe = anew.then_some(Recipe { side, exif, jpeg: jpeg.unwrap_or(1.0) });
        let corrupt = if skip_corrupt { Corrupt::Skip } else { Corrupt::Refuse };
        let config = DataConfig { dir: source, corrupt, image_column, label_column, ..DataConfig::default() };
        pack(&config, recipe, &output).map(|()| 0)
    }
}

/// A percentage as a share of one.
fn share(text: &str) -> std::result::Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
    let share = percent.filter(|percent: &f64| (0.0..=100.0).contains(percent)).map(|percent| percent / 100.0);
    share.ok_or_else(|| "a share from 0% to 100%, as in 10%".into())
}
