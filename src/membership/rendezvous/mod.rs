//! The rendezvous: a small gRPC service where the processes of a job meet and agree on which of them are lost.
//!
//! The service (on rank 0, in the launcher, or alone) holds one session with every process of the job, through mutual
//! TLS by the job's secret (`tls`). A session carries introductions, a key-value store (in which the collective engine
//! publishes its addresses), heartbeats and the **verdict**: when a process dies, stops or fails, the service alone
//! decides which one it was and sends the same line to all. An engine cannot decide that: the first survivor that gives
//! up closes its connections, and the next one then blames that survivor.
//!
//! Reading order: the rest of Kiln calls [`Client`]. [`roster`] is the policy, a pure state machine: it assigns
//! replicas to members ([`placement`]) and decides when the assignment changes. For fixed membership it is
//! [`strict`](roster::strict): the first loss ends the job. [`membership`] defines its events and actions; [`wire`],
//! [`refusal`] and [`greeting`] are the messages; `service`, `service_state`, `session` and `admission` run
//! the service. If it may be at several addresses, [`election`] elects the one that leads. On the side of a member,
//! `connection` is one session, `reconnector` renews it, `member_state` holds what the member knows, and `shared_state`
//! lets threads wait for it.
//!
//! Protected: no process without the secret can join, read or send messages for a member or the service, or end the
//! job; any other answer at the address only leads to a retry. Not protected: an attacker who can drop packets or take
//! the address can keep processes apart until their time limits; and the data of the collective engine is neither
//! authenticated nor encrypted.
//!
//! This room knows nothing of training (an activity is a text and a counter), and does not end the process.

mod admission;
mod change_causes;
mod client;
mod clock;
mod connection;
mod differences;
pub mod election;
mod eligibility;
mod endpoint;
pub mod greeting;
mod member_state;
pub mod membership;
pub mod placement;
mod query;
mod reconnector;
pub mod refusal;
pub mod rejections;
mod requests;
pub mod roster;
mod rpc;
mod rules;
mod secret;
mod secret_file;
mod sentence;
mod service;
mod service_state;
mod session;
mod shared_state;
pub mod store;
mod tls;
pub mod wire;

use std::time::Duration;

pub use client::Client;
pub use member_state::Attempt;
use membership::LATE_BEATS;
pub use membership::MOST_MEMBERS;
pub use query::query;
pub use reconnector::BeforeAttempt;
pub use secret::Secret;
pub use secret_file::{create as create_secret, of_user as secret_of_user};
pub use service::Service;

use kiln_system::{Error, Result};

/// The time limit of the handshake, connecting included.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// What all processes of a job must agree on before they connect.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Distinguishes jobs that use the same address.
    pub job_id: String,
    pub secret: Secret,
    /// The number of processes, 1 to [`MOST_MEMBERS`]; 0 for an elastic job.
    pub size: usize,
    /// A process without a heartbeat for longer is lost.
    pub timeout: Duration,
    /// The time between two heartbeats, at most a third of `timeout`.
    pub beat: Duration,
    /// The addresses where the rendezvous may be, if there are several.
    pub addresses: Vec<String>,
}

impl Terms {
    /// The name of the job and its addresses: two services with different addresses could both have a majority.
    fn job(&self) -> String {
        if self.addresses.is_empty() {
            self.job_id.clone()
        } else {
            format!("{} at {}", self.job_id, self.addresses.join(","))
        }
    }

    /// How long a member waits for a service that is silent: with several addresses no longer than its lease can last.
    fn silence(&self) -> Duration {
        if self.addresses.is_empty() { self.timeout } else { membership::lease(self.timeout) }
    }

    fn check(&self) -> Result<()> {
        if self.size > MOST_MEMBERS {
            let size = self.size;
            return Err(Error::usage(format!(
                "a job of '{size}' processes is too large; --nnodes takes 1 to {MOST_MEMBERS}"
            )));
        }
        if self.beat.is_zero() || self.timeout < self.beat * 3 {
            return Err(Error::usage(format!(
                "a timeout of '{:?}' is less than three heartbeats of {:?}; raise --dist-timeout",
                self.timeout, self.beat
            )));
        }
        Ok(())
    }
}

/// Why the job is over: one line that names the process and the evidence. Also the error of a single request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Verdict(pub String);
