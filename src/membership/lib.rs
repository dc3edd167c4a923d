//! Which processes take part in a job, and which of them are lost.
//!
//! - [`environment`]: the rank of this process, from what launchers tell it (torchrun, MPI, SLURM, TensorFlow).
//! - [`processes`]: starts processes and supervises them; [`exit_policy`] decides how they end, [`output`] labels their
//!   lines.
//! - `rendezvous`, with the feature of this name: a service where processes meet, through mutual TLS by the job's
//!   secret. Its policy, fixed or elastic, is a pure state machine, and it alone decides which process is lost.
//!
//! This crate knows no tensors, no models and none of a run's files: what a process computes is a text and a counter
//! here.

mod children;
mod elastic;
pub mod environment;
pub mod exit_policy;
mod holding;
mod machines;
pub mod output;
pub mod processes;
#[cfg(feature = "rendezvous")]
pub mod rendezvous;
pub mod slurm;
mod speed;
pub mod status;
mod tf_config;

pub use elastic::Elastic;
pub use holding::{Holding, sources};
pub use machines::Machines;
pub use speed::{Speed, by_speed};
pub use status::{MemberStatus, Next, Progress, RunStatus, StateVersion};

/// How many times the time limit of a message processes wait for what may take long, such as reading images.
pub const PATIENCE: u32 = 10;
