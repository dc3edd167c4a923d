//! The commands: resolve, prepare, train or evaluate, and print the results.
//!
//! `run.rs` is a training from start to end, `session.rs` its common part with an elastic one (`elastic.rs`).
//! `origin.rs` and `resume.rs` continue an earlier run, `pretrained.rs` and `initial.rs` begin with weights of another,
//! `auto_stages.rs` chooses stages, `auto_replicas.rs` the replicas of each device, `recorder.rs` writes the results,
//! `watch.rs` names replicas that others wait for, `broadcast.rs` sends the starting point to all processes.
//! `commands` has all commands but `train`, `child.rs` runs this program as a child.

mod auto_replicas;
mod auto_stages;
mod broadcast;
mod child;
mod clock;
mod commands;
mod elastic;
mod end;
mod evaluation;
mod initial;
mod leave;
mod loading;
mod logs;
mod model_file;
mod origin;
mod overview;
mod phases;
mod pictures;
mod prepare;
mod pretrained;
mod recorder;
mod recovery;
mod requeue;
mod resources;
mod results;
mod resume;
mod run;
mod serving;
mod session;
mod snapshot;
mod step_log;
mod succession;
mod terminal;
mod watch;

pub use commands::{
    Answers, Question, SweepOptions, Verification, doctor, evaluate, export, find_batch_size, find_learning_rate,
    launch, members, membership, pack, plan, predict, rendezvous, scaling, secret, serve, slurm, sweep, verify,
};
pub use prepare::prepare_process;
pub use pretrained::completed;
pub use run::train;
pub use terminal::{say, warn};

pub use kiln_engine::checkpoint::Which;
