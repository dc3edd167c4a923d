//! The commands: resolve, prepare, train or evaluate, and print the results.
//!
//! `classification.rs` is the task, `run.rs` a training from start to end, `origin.rs` and `resume.rs` continue an
//! earlier one, `pretrained.rs` and `initial.rs` begin with weights of another, `placement.rs` chooses stages, `recorder.rs` writes its results, `backend.rs` instantiates the program
//! for each backend, `together.rs` sends the starting point to all processes. `commands` has all commands but `train`,
//! `child.rs` runs this program as a child.

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
mod placement;
mod prepare;
mod pretrained;
mod recorder;
mod recovery;
mod requeue;
mod resources;
mod results;
mod resume;
mod run;
mod saved;
mod snapshot;
mod step_log;
mod succession;
mod terminal;
mod together;

pub use backend::prepare_process;
pub use commands::{
    Answers, PlanOptions, Question, SweepOptions, Verification, doctor, evaluate, export, find, launch, members,
    membership, pack, plan, predict, rendezvous, scaling, secret, slurm, sweep, verify,
};
pub use model_file::Which;
pub use pretrained::completed;
pub use run::train;
pub use saved::{Checkpoints, Resumed, resumed};
pub use terminal::{say, warn};
