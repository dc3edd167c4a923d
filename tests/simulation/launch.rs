//! The mounted files of `src/launch/`, and the simulation that drives them.

#[path = "../../src/launch/status.rs"]
pub mod status;

pub mod rendezvous;
