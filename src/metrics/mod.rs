//! What a run tells about itself, and to whom.
//!
//! Reading order: [`record`] is what is measured, [`meter`] how, [`sink`] the trait of the places it goes to:
//! [`console`], [`bar`] and `dashboard` for people at a [`mod@terminal`] (all with [`mod@line`], the text of a record; the
//! dashboard, with the feature `tui`, draws a `panel` on the [`screen`]), [`jsonl`] and [`csv`] for programs (both on a
//! [`journal`]), [`tensorboard`] for TensorBoard (with [`utilization`] of the devices);
//! [`summary`] is the last word, [`mod@environment`] what it was said on, and [`profile`] says where time went.
//!
//! Files of a resumed run hold each step once: whatever lies behind the step that the run resumes from is dropped
//! before new lines follow. This room computes nothing about models; it is handed plain numbers.

pub mod bar;
pub mod console;
pub mod csv;
#[cfg(feature = "tui")]
pub mod dashboard;
pub mod environment;
pub mod journal;
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
pub use console::Console;
pub use csv::Csv;
#[cfg(feature = "tui")]
pub use dashboard::Dashboard;
pub use environment::environment;
pub use jsonl::Jsonl;
pub use line::Goal;
pub use meter::{Average, Throughput, format_duration, peak_memory};
pub use profile::Profiler;
pub use record::{EpochRecord, GenerationRecord, Record, StepRecord};
pub use sink::Sink;
pub use summary::Summary;
pub use tensorboard::{Hparam, TensorBoard};
pub use utilization::{Card, Utilization};
pub use warnings::warnings;

/// Of a build without a dashboard, in which nobody takes the terminal.
#[cfg(not(feature = "tui"))]
pub mod screen {
    /// Keeps nothing.
    pub fn keep(_text: &str) -> bool {
        false
    }

    /// Has nothing to give back.
    pub fn close() {}
}
