//! The pure files of `src/membership/rendezvous/`, with a virtual clock, and what they need of the files that are not.

#[path = "../../src/membership/rendezvous/change_causes.rs"]
mod change_causes;
#[path = "clock.rs"]
pub mod clock;
#[path = "../../src/membership/rendezvous/differences.rs"]
mod differences;
#[path = "../../src/membership/rendezvous/election.rs"]
pub mod election;
#[path = "../../src/membership/rendezvous/eligibility.rs"]
mod eligibility;
#[path = "../../src/membership/rendezvous/member_state.rs"]
pub mod member_state;
#[path = "../../src/membership/rendezvous/membership.rs"]
pub mod membership;
#[path = "../../src/membership/rendezvous/placement.rs"]
pub mod placement;
#[path = "../../src/membership/rendezvous/refusal.rs"]
pub mod refusal;
#[path = "../../src/membership/rendezvous/requests.rs"]
mod requests;
#[path = "../../src/membership/rendezvous/roster/mod.rs"]
pub mod roster;
#[path = "../../src/membership/rendezvous/sentence.rs"]
mod sentence;
#[path = "../../src/membership/rendezvous/shared_state.rs"]
pub mod shared_state;
#[path = "../../src/membership/rendezvous/wire.rs"]
pub mod wire;

#[path = "world/mod.rs"]
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
