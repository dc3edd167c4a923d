//! The rank of this process, how the processes of a run meet, and how they detect losses.
//!
//! `environment.rs` reads what launchers tell a process. A run of fixed membership uses the trait in `fixed.rs`, an
//! elastic one the trait in `elastic.rs`; `fixed_member.rs` and `elastic_member.rs` implement them over the service in
//! `rendezvous/` and Gloo, and `join.rs` chooses. `processes.rs` is `train launch`. This room knows neither models nor
//! the files of a run.

#[cfg(feature = "gloo")]
mod address;
mod children;
#[cfg(feature = "gloo")]
mod connector;
pub mod elastic;
#[cfg(feature = "gloo")]
mod elastic_member;
#[cfg(feature = "gloo")]
mod engine_store;
pub mod environment;
pub mod exit_policy;
mod fixed;
#[cfg(feature = "gloo")]
mod fixed_member;
#[cfg(feature = "gloo")]
mod holder;
mod join;
mod machines;
pub mod output;
pub mod processes;
#[cfg(feature = "gloo")]
pub mod rendezvous;
pub mod sbatch;
pub mod slurm;
#[cfg(feature = "gloo")]
mod stage_engines;
mod status;
mod tf_config;

pub use elastic::{ActiveGeneration, ElasticMembership, Next};
pub use fixed::{FixedMembership, alone};
pub use join::{create_secret, hold_rendezvous, join, join_elastic, launch, quiet_name, run_status};
pub use machines::Machines;
pub use status::{MemberStatus, Progress, RunStatus, StateVersion};
