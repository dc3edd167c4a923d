//! Launchers and the rendezvous: who a process is, how processes meet, and which of them are lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]

mod environment;
mod exit_policy;
mod holding;
mod output;
mod processes;
#[cfg(feature = "rendezvous")]
mod rendezvous;
