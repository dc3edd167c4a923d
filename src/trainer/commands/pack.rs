//! `train pack`: writes images into one file that is fast to read.

use std::path::Path;
use std::time::Instant;

use kiln_data::{DataConfig, Packed, Recipe};
use kiln_engine::checkpoint::check_writable;
use kiln_system::{Error, Result, shown};

use crate::config::ProgressKind;
use crate::trainer::loading::Bars;
use crate::trainer::terminal::{say, warn};

pub fn pack(config: &DataConfig, recipe: Option<Recipe>, output: &Path) -> Result<()> {
    check_writable(output).map_err(|error| Error::usage(format!("{error}; give another --output")))?;
    let (bars, start) = (Bars::new(ProgressKind::Auto), Instant::now());
    let Packed { images, bytes, notes } = kiln_data::pack(config, recipe, output, &|progress| bars.show(progress))?;
    bars.finish();
    notes.iter().for_each(|note| warn(&format!("warning: {note}")));
    let seconds = start.elapsed().as_secs_f64();
    say(&format!("written     {}: {images} images, {:.1} MB, in {seconds:.1} s", shown(output), bytes as f64 / 1e6));
    say(&format!("use         --data pack --data-dir {}", shown(output)));
    Ok(())
}
