//! `train pack`: writes images into one file that is fast to read.

use std::path::Path;
use std::time::Instant;

use crate::config::ProgressKind;
use crate::data::{self, Corrupt, Recipe};
use crate::error::Result;
use crate::trainer::loading::Bars;
use crate::trainer::terminal::say;

/// Packs the images in `source` into the file `output`.
pub fn pack(source: &Path, corrupt: Corrupt, recipe: Option<Recipe>, output: &Path) -> Result<()> {
    let (bars, start) = (Bars::new(ProgressKind::Auto), Instant::now());
    let (images, bytes) = data::pack(source, corrupt, recipe, output, &|progress| bars.show(progress))?;
    bars.finish();
    let seconds = start.elapsed().as_secs_f64();
    say(&format!("written     {}: {images} images, {:.1} MB, in {seconds:.1} s", output.display(), bytes as f64 / 1e6));
    say(&format!("use         --data pack --data-dir {}", output.display()));
    Ok(())
}
