//! The progress of work other than training: a bar on a terminal, lines in a log, and a notice about single steps that
//! take long.

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use kiln_data::{DataSplits, Progress};
use kiln_system::{Result, printable};
use parking_lot::Mutex;

use super::terminal::say;
use crate::config::{Config, ProgressKind};
use crate::metrics::meter::LogLines;

/// Work that ends sooner is not mentioned.
const PATIENCE: Duration = Duration::from_secs(2);

/// Loads the data set and shows the progress, but not with `--progress none`.
pub(super) fn load(config: &Config) -> Result<DataSplits> {
    let bars = Bars::new(config.run.progress);
    let load = if config.run.dry_run { kiln_data::survey } else { kiln_data::load };
    let splits = load(&config.data, &|progress| bars.show(progress))?;
    bars.finish();
    Ok(splits)
}

pub(super) struct Bars {
    is_silent: bool,
    current: Mutex<Option<(String, Indicator)>>,
}

enum Indicator {
    Bar(ProgressBar),
    Lines(Instant, LogLines),
}

impl Bars {
    pub(super) fn new(kind: ProgressKind) -> Self {
        Self { is_silent: !kind.is_text(), current: Mutex::default() }
    }

    pub(super) fn show(&self, progress: Progress) {
        match progress {
            Progress::Bytes { what, done, total } => {
                let template = "fetching {msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
                self.step("fetching", &what, [done, total.unwrap_or(done)], template);
            }
            Progress::Line(text) if self.is_silent => drop(text),
            Progress::Line(text) => say(&text),
            Progress::Files { what, done, total } => self.count("reading", &what, done, total),
        }
    }

    /// Shows that `done` of `total` parts of a task are done.
    pub(super) fn count(&self, verb: &str, what: &str, done: usize, total: usize) {
        let template = format!("{verb} {{msg}} {{wide_bar}} {{pos}}/{{len}} eta {{eta}}");
        self.step(verb, what, [done as u64, total as u64], &template);
    }

    fn step(&self, verb: &str, what: &str, [done, total]: [u64; 2], template: &str) {
        if self.is_silent {
            return;
        }
        let mut current = self.current.lock();
        if current.as_ref().is_none_or(|(name, _)| name != what) {
            let style = ProgressStyle::with_template(template).expect("the templates above are well formed");
            let bar = || ProgressBar::new(total).with_style(style).with_message(printable(what).into_owned());
            let shown = if stderr().is_terminal() {
                Indicator::Bar(bar())
            } else {
                Indicator::Lines(Instant::now(), LogLines::default())
            };
            *current = Some((what.into(), shown));
        }
        match current.as_mut() {
            Some((_, Indicator::Bar(bar))) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            Some((_, Indicator::Lines(began, lines))) => {
                let line = lines.after(began.elapsed().as_secs_f64(), done, total);
                line.into_iter().for_each(|line| say(&format!("{verb:<12}{what}: {line}")));
            }
            None => {}
        }
    }

    pub(super) fn finish(self) {
        if let Some((_, Indicator::Bar(bar))) = self.current.into_inner() {
            bar.finish_and_clear();
        }
    }
}

/// Says what is under way if it is not dropped soon.
pub(super) struct Notice {
    _end: Sender<()>,
}

impl Notice {
    /// Says `text` in two seconds; nothing if `kind` shows no text.
    pub(super) fn new(kind: ProgressKind, text: impl FnOnce() -> String) -> Option<Self> {
        let text = kind.is_text().then(text)?;
        let (end, is_over) = channel::<()>();
        let wait = move || {
            if is_over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                say(&text);
            }
        };
        // Without a thread the work is done all the same.
        thread::Builder::new().name("notice".into()).spawn(wait).ok().map(|_| Self { _end: end })
    }
}
