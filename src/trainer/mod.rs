//! The story of a command: resolve, prepare, train or evaluate, and say what came out.
//!
//! Read `classification.rs` for what is trained, `run.rs` for a training from start to end, `origin.rs` and `resume.rs`
//! for how it takes up an earlier one, `recorder.rs` for what it writes while it runs, `backend.rs` for how one program
//! becomes many backends' programs, `together.rs` for what is the same on all processes; `commands` for all commands but
//! `train` itself, `child.rs` for runs as processes of their own.

mod backend;
mod child;
pub mod classification;
mod clock;
mod commands;
mod conclusion;
mod departure;
mod elastic;
mod elastic_run;
mod evaluation;
mod initial;
pub mod learner;
mod loading;
mod logs;
mod model_file;
mod origin;
mod overview;
mod phases;
mod pictures;
mod prepare;
mod recorder;
mod requeue;
mod results;
mod resume;
mod run;
mod samples;
mod saved;
mod snapshot;
mod succession;
mod terminal;
mod together;

pub use commands::{
    Question, evaluate, export, find, launch, members, membership, predict, rendezvous, scaling, secret, sweep,
};
pub use model_file::Which;
pub use origin::with_saved;
pub use run::train;
pub use saved::{Checkpoints, Resumed, resumed};
pub use terminal::{say, warn};
