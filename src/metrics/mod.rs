//! Metrics of a run and their outputs.
//!
//! `record` defines what is measured, [`meter`] computes rates, `sink` is the trait of outputs:
//! `console`, `bar` and `dashboard` for a `terminal` (all with the texts of [`mod@line`]; the dashboard, with
//! the feature `tui`, draws a `panel` on the [`screen`]), `jsonl` and [`csv`] for programs (both on a `journal`),
//! `tensorboard` (with [`utilization`] of the devices). [`stragglers`] finds replicas that others wait for. `summary` is
//! the closing text, `environment` describes the machine, `profile` measures phases.
//!
//! Files of a resumed run hold each step once: lines after the step that the run resumes from are dropped first.

mod bar;
mod chain;
mod console;
pub mod csv;
#[cfg(feature = "tui")]
mod dashboard;
mod environment;
pub(crate) mod journal;
mod json_stream;
mod jsonl;
pub mod line;
pub mod meter;
#[cfg(feature = "tui")]
pub mod panel;
mod profile;
mod record;
#[cfg(feature = "tui")]
pub mod screen;
mod sink;
pub mod stragglers;
mod summary;
mod tensorboard;
pub(crate) mod terminal;
pub mod utilization;
mod warnings;

pub use bar::Bar;
pub use chain::{Links, links};
pub use console::Console;
pub use csv::Csv;
#[cfg(feature = "tui")]
pub(crate) use dashboard::Dashboard;
pub(crate) use environment::{command, date, environment};
pub(crate) use json_stream::JsonStream;
pub use jsonl::Jsonl;
pub use line::Goal;
pub use meter::{Throughput, format_duration, peak_memory};
pub(crate) use meter::{gibibytes, resident_memory};
pub use profile::Profiler;
pub(crate) use profile::TRACED;
pub use record::{
    Cause, EpochRecord, GenerationRecord, MemberRecord, Record, ReplicaRecord, ReplicasRecord, StartRecord, StepRecord,
};
pub use sink::Sink;
pub use summary::Summary;
pub use tensorboard::TensorBoard;
pub use utilization::{Card, Utilization};
pub(crate) use warnings::warnings;

/// The screen of a build without a dashboard: never in use.
#[cfg(not(feature = "tui"))]
pub mod screen {
    pub fn is_used() -> bool {
        false
    }

    pub fn show_again(_text: &str) {}

    pub fn keep(_text: &str) -> bool {
        false
    }

    pub fn close() {}
}
