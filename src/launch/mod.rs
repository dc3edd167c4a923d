//! Who this process is among others, and how they find and lose each other.
//!
//! Read `environment.rs` for what launchers tell a process, `peers.rs` for what a run asks of the other processes,
//! `job.rs` for how they meet (`rendezvous/`, then an engine), `elastic.rs`, `crew.rs` and `ahead.rs` for those that come
//! and go, `processes.rs` for `train launch`. The room knows no model and no file of a run.

#[cfg(feature = "gloo")]
mod address;
#[cfg(feature = "gloo")]
mod ahead;
pub mod course;
#[cfg(feature = "gloo")]
mod crew;
pub mod elastic;
pub mod environment;
mod family;
#[cfg(feature = "gloo")]
mod holder;
#[cfg(feature = "gloo")]
mod job;
#[cfg(feature = "gloo")]
mod keys;
pub mod output;
mod peers;
pub mod processes;
#[cfg(feature = "gloo")]
pub mod rendezvous;
pub mod slurm;

pub use elastic::{Attendance, Meeting, Members, Next, Standing, attendance, elastic, hold_rendezvous};
pub use peers::{Peers, alone, create_secret, join, launch};
