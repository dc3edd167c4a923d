//! The commands other than `train`, one file each.
//!
//! `find.rs`, [`scaling()`] and [`plan()`] measure with `measured_run.rs`; [`verify()`] repeats steps with `replay.rs`,
//! and `compare_runs.rs` compares two runs.

mod compare_runs;
mod doctor;
mod evaluate;
mod export;
mod find;
mod launch;
mod measured_run;
pub mod membership;
mod pack;
mod plan;
mod predict;
mod replay;
mod scaling;
mod serve;
mod slurm;
mod sweep;
mod sweep_dir;
mod trial;
mod verify;

pub use doctor::doctor;
pub use evaluate::evaluate;
pub use export::export;
pub use find::{find_batch_size, find_learning_rate};
pub use launch::launch;
pub use membership::{members, rendezvous, secret};
pub use pack::pack;
pub use plan::plan;
pub use predict::{Answers, Question, predict};
pub use replay::Verification;
pub use scaling::scaling;
pub use serve::serve;
pub use slurm::slurm;
pub use sweep::{SweepOptions, sweep};
pub use verify::verify;
