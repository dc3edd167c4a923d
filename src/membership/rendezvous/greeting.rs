//! The first message of each side: before a process introduces itself, both must be of one build and one job.
//!
//! Pure functions from envelope to envelope. With a secret they travel through TLS, so both sides have proven that they
//! know it. The [`roster`](super::roster) decides whether a process that was greeted may join.

use prost::Message;

use super::refusal::Refusal;
use super::wire::{Answer, Envelope, Greeting, Hello, PROTOCOL};
use super::{Terms, sentence};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A member's first envelope.
pub fn hello(terms: &Terms) -> Envelope {
    let (job_id, size) = (terms.job(), terms.size as u64);
    let hello = Hello { protocol: PROTOCOL, version: VERSION.into(), job_id, size };
    Envelope { body: Greeting { hello: Some(hello) }.encode_to_vec() }
}

/// Whether the sender of this first envelope may introduce itself.
pub fn greet(terms: &Terms, envelope: &Envelope) -> Result<(), Refusal> {
    // A message that cannot be read is an empty greeting.
    let Some(hello) = Greeting::decode(envelope.body.as_slice()).unwrap_or_default().hello else {
        return Err(Refusal::permanent("the first message was not a greeting; connect to this port with train only"));
    };
    check(terms, &hello).map_err(Refusal::other_job)
}

/// The service's first envelope; without a refusal the session continues.
pub fn answer(refusal: Option<Refusal>) -> Envelope {
    Envelope { body: Answer { refusal }.encode_to_vec() }
}

/// The refusal in the service's first envelope, if it is one.
pub fn refusal(envelope: &Envelope) -> Option<Refusal> {
    let unreadable = |_| Refusal::other_job("its answer cannot be read; start every process from the same build");
    Answer::decode(envelope.body.as_slice()).map_or_else(|error| Some(unreadable(error)), |answer| answer.refusal)
}

/// Why a process does not belong to this service.
fn check(terms: &Terms, hello: &Hello) -> Result<(), String> {
    if hello.protocol != PROTOCOL || hello.version != VERSION {
        return Err(format!(
            "this process is kiln '{}' (protocol {}), the rendezvous is kiln {VERSION} (protocol {PROTOCOL}); start \
             every process from the same build",
            sentence::line(&hello.version, 40),
            hello.protocol
        ));
    }
    if hello.job_id != terms.job() {
        return Err(format!(
            "the rendezvous serves a job other than '{}'; give every process the same --job-id and --dist-url",
            sentence::line(&hello.job_id, 80)
        ));
    }
    match (hello.size, terms.size) {
        (theirs, ours) if theirs == ours as u64 => Ok(()),
        (_, 0) => Err("the rendezvous serves an elastic job; give every process the same --elastic".into()),
        (0, _) => {
            Err("the rendezvous serves a job of fixed membership; remove --elastic, or give it to every process".into())
        }
        (theirs, ours) => Err(format!(
            "this process expects '{theirs}' processes in the job, the rendezvous {ours}; give every process the same \
             --world-size and --nnodes"
        )),
    }
}
