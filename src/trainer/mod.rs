//! The story of a command: resolve, prepare, train or evaluate, and say what came out.
//!
//! Read `classification.rs` for what is trained, `run.rs` for a training from start to end, `origin.rs` and `resume.rs` for how it takes up an earlier one,
//! `recorder.rs` for what it writes while it runs, `backend.rs` for how one program becomes many backends' programs,
//! `together.rs` for what is the same on all processes; `sweep.rs` for many runs, `child.rs` for each as a process.

mod backend;
mod child;
pub mod classification;
mod clock;
mod conclusion;
mod departure;
mod elastic;
mod elastic_run;
mod evaluate;
mod evaluation;
mod export;
mod find;
mod initial;
mod launch;
pub mod learner;
mod loading;
mod logs;
mod measured_run;
pub mod membership;
mod model_file;
mod origin;
mod overview;
mod pictures;
mod predict;
mod prepare;
mod recorder;
mod requeue;
mod results;
mod resume;
mod run;
mod samples;
mod saved;
mod scaling;
mod snapshot;
mod succession;
mod sweep;
mod terminal;
mod together;

pub use evaluate::evaluate;
pub use export::export;
pub use find::find;
pub use launch::launch;
pub use membership::{members, rendezvous, secret};
pub use model_file::Which;
pub use origin::with_saved;
pub use predict::{Question, predict};
pub use run::train;
pub use saved::Checkpoints;
pub use scaling::scaling;
pub use sweep::sweep;
pub use terminal::{say, warn};
