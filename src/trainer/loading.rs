//! Loads the images, with a progress bar.

use std::cell::RefCell;

use indicatif::{ProgressBar, ProgressStyle};

use crate::config::ProgressKind;
use crate::data::{self, DataConfig, DataSplits, Progress};
use crate::error::Result;

/// Loads the data set. The bar is shown only on a terminal, and not with `--progress none`.
pub(super) fn load(config: &DataConfig, kind: ProgressKind) -> Result<DataSplits> {
    let bars = Bars::new(kind);
    let splits = data::load(config, &|progress| bars.show(progress))?;
    bars.finish();
    Ok(splits)
}

/// A progress bar for several tasks in turn.
pub(super) struct Bars {
    is_silent: bool,
    current: RefCell<Option<(String, ProgressBar)>>,
}

impl Bars {
    pub(super) fn new(kind: ProgressKind) -> Self {
        Self { is_silent: !kind.is_text(), current: RefCell::default() }
    }

    pub(super) fn show(&self, progress: Progress) {
        if self.is_silent {
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
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_none_or(|(name, _)| *name != what) {
            let style = ProgressStyle::with_template(template).expect("the templates above are well formed");
            *current = Some((what.clone(), ProgressBar::new(total.unwrap_or(0)).with_style(style).with_message(what)));
        }
        if let Some((_, bar)) = current.as_ref() {
            bar.set_length(total.unwrap_or(done));
            bar.set_position(done);
        }
    }

    /// Clears the line.
    pub(super) fn finish(self) {
        if let Some((_, bar)) = self.current.into_inner() {
            bar.finish_and_clear();
        }
    }
}
