//! The rendezvous: how the processes of one training meet, talk, and agree on who is lost.
//!
//! A small gRPC service (on rank 0, or in the launcher) holds one session with every process of the job. A session
//! opens with a mutual proof of the job's secret, then carries introductions, a key-value store (the collective engine
//! publishes its addresses there), heartbeats and the **verdict**: when a process dies, stops or fails, the service
//! alone decides who it was and tells everybody the same line. An engine cannot do that: the first survivor that gives
//! up closes its connections, and the next one then blames that survivor.
//!
//! Reading order: [`Client`] is what the rest of Kiln calls; [`roster`] (with `generation`, `prospect` and [`placement`])
//! is the policy, a pure state machine: it says who computes which replicas, and when that changes. A job of fixed
//! membership is one whose roster is [`strict`](roster::strict): the first loss ends it. [`bulletin`] is what the roster
//! tells; [`wire`], [`refusal`], [`handshake`] and [`seal`] are what travels; `state`, `session`, `admission` and
//! `service` perform what the roster says. On a member's side `connection` is one session, `comeback` keeps it, `news` is what a client knows, and `visit`
//! asks one question.
//!
//! What is protected: both sides prove the secret before either believes the other, and every later message carries a
//! keyed hash, so nobody without the secret can join, speak for a member or for the service, or end the job: whatever
//! else answers at the address is only a reason to try again. What is not: messages travel in the clear unless there is
//! [`Tls`]; whoever can hold back packets, or takes the address, can keep processes apart until their limits; and what
//! the collective engine carries between processes is neither authenticated nor encrypted.
//!
//! The room knows nothing of training: an activity is a text and a counter. It decides, others act: ending the process
//! is left to the caller of [`Client::when_over`].

mod admission;
pub mod bulletin;
mod causes;
mod client;
mod comeback;
mod connection;
mod differences;
mod eligibility;
mod endpoint;
pub mod handshake;
pub mod knocks;
mod news;
pub mod placement;
pub mod refusal;
mod requests;
pub mod roster;
mod rpc;
mod rules;
pub mod seal;
mod secret;
mod secret_file;
mod sentence;
mod service;
mod session;
mod state;
pub mod store;
mod tls;
mod visit;
pub mod wire;

use std::time::Duration;

pub use client::Client;
pub use comeback::BeforeAttempt;
pub use news::Attempt;
pub use secret::Secret;
pub use secret_file::{create as create_secret, of_user as secret_of_user};
pub use service::Service;
pub use tls::Tls;
pub use visit::visit;

use crate::error::{Error, Result};

/// The most processes one job may have: the list of all of them must fit into one message.
pub const MOST_MEMBERS: usize = 2048;
/// So many heartbeats may be late without meaning anything.
const LATE_BEATS: u32 = 3;
/// How long a connection may take until its process is admitted.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// What all processes of a job agree on before they meet.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Tells this job from others that might use the same address.
    pub job_id: String,
    /// What only the processes of this job know.
    pub secret: Secret,
    /// How many processes the job has, 1 to [`MOST_MEMBERS`]; 0 where they come and go.
    pub size: usize,
    /// A process without a heartbeat for so long is lost.
    pub timeout: Duration,
    /// The time between two heartbeats, at most a third of `timeout`.
    pub beat: Duration,
    /// Files for encryption; `None` sends everything in the clear (authenticated all the same).
    pub tls: Option<Tls>,
}

impl Terms {
    /// Refuses terms under which no job can be watched.
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

/// Why the job is over: one line that names the process and how it is known. Also what a single request answers that
/// could not be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Verdict(pub String);
