//! The pure files of `src/launch/rendezvous/`, with a virtual clock, and what they need of the files that are not.

#[path = "../../../src/launch/rendezvous/change_causes.rs"]
mod change_causes;
#[path = "../clock.rs"]
pub mod clock;
#[path = "../../../src/launch/rendezvous/differences.rs"]
mod differences;
#[path = "../../../src/launch/rendezvous/election.rs"]
pub mod election;
#[path = "../../../src/launch/rendezvous/eligibility.rs"]
mod eligibility;
#[path = "../../../src/launch/rendezvous/member_state.rs"]
pub mod member_state;
#[path = "../../../src/launch/rendezvous/membership.rs"]
pub mod membership;
#[path = "../../../src/launch/rendezvous/placement.rs"]
pub mod placement;
#[path = "../../../src/launch/rendezvous/refusal.rs"]
pub mod refusal;
#[path = "../../../src/launch/rendezvous/requests.rs"]
mod requests;
#[path = "../../../src/launch/rendezvous/roster/mod.rs"]
pub mod roster;
#[path = "../../../src/launch/rendezvous/sentence.rs"]
mod sentence;
#[path = "../../../src/launch/rendezvous/shared_state.rs"]
pub mod shared_state;
#[path = "../../../src/launch/rendezvous/wire.rs"]
pub mod wire;

#[path = "../world/mod.rs"]
pub mod world;

use std::time::Duration;

use membership::LATE_BEATS;
pub use membership::MOST_MEMBERS;

/// What the mounted files need of the terms of a job.
pub struct Terms {
    pub timeout: Duration,
    pub beat: Duration,
}

/// Why the job is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Verdict(pub String);
