//! Metrics of a run and their outputs.
//!
//! [`record`] defines what is measured, [`meter`] computes means and rates, [`sink`] is the trait of outputs:
//! [`console`], [`bar`] and `dashboard` for a [`mod@terminal`] (all with the texts of [`mod@line`]; the dashboard, with
//! the feature `tui`, draws a `panel` on the [`screen`]), [`jsonl`] and [`csv`] for programs (both on a [`journal`]),
//! [`tensorboard`] (with [`utilization`] of the devices). [`summary`] is the closing text, [`mod@environment`]
//! describes the machine, [`profile`] measures phases.
//!
//! Files of a resumed run hold each step once: lines after the step that the run resumes from are dropped first.

pub mod bar;
mod chain;
pub mod console;
pub mod csv;
#[cfg(feature = "tui")]
pub mod dashboard;
pub mod environment;
pub mod journal;
pub mod json_stream;
pub mod jsonl;
pub mod line;
pub mod meter;
#[cfg(feature = "tui")]
pub mod panel;
pub mod profile;
pub mod record;
#[cfg(feature = "tui")]
pub mod screen;
pub mod sink;
pub mod summary;
pub mod tensorboard;
pub mod terminal;
pub mod utilization;
pub mod warnings;

pub use bar::Bar;
pub use chain::{Links, links};
pub use console::Console;
pub use csv::Csv;
#[cfg(feature = "tui")]
pub use dashboard::Dashboard;
pub use environment::environment;
pub use json_stream::JsonStream;
pub use jsonl::Jsonl;
pub use line::Goal;
pub use meter::{Average, Throughput, format_duration, gibibytes, peak_memory, resident_memory};
pub use profile::Profiler;
pub use record::{EpochRecord, GenerationRecord, Record, StartRecord, StepRecord};
pub use sink::Sink;
pub use summary::Summary;
pub use tensorboard::{Hparam, TensorBoard};
pub use utilization::{Card, Utilization};
pub use warnings::warnings;

/// The screen of a build without a dashboard: never in use.
#[cfg(not(feature = "tui"))]
pub mod screen {
    /// Never.
    pub fn is_used() -> bool {
        false
    }

    /// Keeps nothing.
    pub fn keep(_text: &str) -> bool {
        false
    }

    /// Does nothing.
    pub fn close() {}
}
