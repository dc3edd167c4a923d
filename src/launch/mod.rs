//! How this process takes part in a run, and the commands that start or hold one.
//!
//! A run of fixed membership uses the trait in `fixed.rs`, an elastic one the trait in `elastic.rs`; `fixed_member.rs`
//! and `elastic_member.rs` implement them over the rendezvous of [`kiln_membership`] and Gloo, and `join.rs` chooses.
//! This room knows neither models nor the files of a run.

#[cfg(feature = "gloo")]
mod address;
#[cfg(feature = "gloo")]
mod connector;
pub mod elastic;
#[cfg(feature = "gloo")]
mod elastic_member;
mod fixed;
#[cfg(feature = "gloo")]
mod fixed_member;
#[cfg(feature = "gloo")]
mod holder;
mod join;
#[cfg(feature = "gloo")]
mod member;
pub mod sbatch;
#[cfg(feature = "gloo")]
mod stage_engines;

pub use elastic::{ActiveGeneration, ElasticMembership};
pub use fixed::{FixedMembership, alone};
pub use join::{create_secret, hold_rendezvous, join, join_elastic, launch, quiet_name, run_status};
