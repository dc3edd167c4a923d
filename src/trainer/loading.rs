//! Reads the images, with a progress bar for what takes long.

use std::cell::RefCell;

use indicatif::{ProgressBar, ProgressStyle};

use crate::config::ProgressKind;
use crate::data::{self, DataConfig, DataSplits, Progress};
use crate::error::Result;

/// Loads the data set; the bar shows on a terminal only, and not with `--progress none`.
pub(super) fn load(config: &DataConfig, kind: ProgressKind) -> Result<DataSplits> {
    let bar: RefCell<Option<(String, ProgressBar)>> = RefCell::default();
    let draw = |progress: Progress| {
        if kind == ProgressKind::None {
            return;
        }
        let (what, done, total, template) = match progress {
            Progress::Bytes { what, done, total } => {
                (what, done, total, "fetching {msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            }
            Progress::Files { what, done, total } => {
                (what, done as u64, Some(total as u64), "reading {msg} {wide_bar} {pos}/{len}")
            }
        };
        let mut current = bar.borrow_mut();
        if current.as_ref().is_none_or(|(name, _)| *name != what) {
            let style = ProgressStyle::with_template(template).expect("the templates above are well formed");
            *current = Some((what.clone(), ProgressBar::new(total.unwrap_or(0)).with_style(style).with_message(what)));
        }
        if let Some((_, bar)) = current.as_ref() {
            bar.set_length(total.unwrap_or(done));
            bar.set_position(done);
        }
    };
    let splits = data::load(config, &draw)?;
    if let Some((_, bar)) = bar.into_inner() {
        bar.finish_and_clear();
    }
    Ok(splits)
}
