//! A member's side of a session: it connects, proves the secret, then listens, speaks and keeps the heart beating.
//!
//! It never waits for the rest of the process, nor lets a full connection keep it from listening. What the session is
//! for, and what its end means, is left to its [`Duty`] and to whoever opened it.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::endpoint::{cause, distrust, endpoint};
use super::handshake::{Doubt, Guest};
use super::refusal::Refusal;
use super::seal::Seal;
use super::secret::nonce;
use super::wire::{Envelope, FromMember, FromService, decode, encode};
use super::{HANDSHAKE, Terms, rpc, sentence};
use crate::error::{Error, Result};

/// Requests of the process that are taken over before the connection has taken the earlier ones.
const BACKLOG: usize = 16;

/// Why an attempt to join did not succeed. Its words are this process' own, unless a proof came with those of the service.
pub(super) enum Obstacle {
    /// Nobody answered, or not to the end: it may be gone next time.
    Passing(String),
    /// Nothing proves that whoever answered is the job's service. It may be gone next time, or the secret may be wrong.
    Unproven(String),
    /// Whoever answered knows the secret, and serves another job.
    Elsewhere(Error),
    /// The service refuses this process; another attempt would meet the same refusal.
    Final(Error),
}

/// Opens sessions with the service at one address.
pub(super) struct Caller {
    endpoint: Endpoint,
    pub address: String,
    pub terms: Terms,
}

impl Caller {
    /// `address` is `host:port`. To be called within a runtime.
    pub fn new(address: &str, terms: &Terms) -> Result<Self> {
        Ok(Self { endpoint: endpoint(address, terms)?, address: address.into(), terms: terms.clone() })
    }

    /// Connects, and proves the secret in both directions; `who` is what a refusal calls this process.
    pub async fn call(&self, introduction: Vec<u8>, who: &str) -> std::result::Result<Session, Obstacle> {
        let silent = |_| Obstacle::Passing("no answer".into());
        tokio::time::timeout(HANDSHAKE, self.meet(introduction, who)).await.map_err(silent)?
    }

    async fn meet(&self, introduction: Vec<u8>, who: &str) -> std::result::Result<Session, Obstacle> {
        let channel = self.endpoint.connect().await.map_err(|error| self.unreachable(&error))?;
        let (outgoing, envelopes) = mpsc::channel(rpc::QUEUE);
        let gone = |_| Obstacle::Passing("its connection closed".into());
        let guest = Guest::new(&self.terms, introduction, nonce());
        outgoing.send(guest.hello()).await.map_err(gone)?;
        let broke = |status: tonic::Status| Obstacle::Passing(self.broken(&status));
        let mut incoming = rpc::open(channel, envelopes).await.map_err(broke)?;
        let challenge = incoming.message().await.map_err(broke)?;
        let challenge = challenge.ok_or_else(|| Obstacle::Passing("it closed the connection".into()))?;
        let (seal, proof) = guest.answer(&challenge).map_err(|doubt| match doubt {
            Doubt::Unproven => self.unproven(),
            Doubt::Refused(refusal) => self.refused(who, refusal),
        })?;
        outgoing.send(proof).await.map_err(gone)?;
        Ok(Session { seal, incoming, outgoing, backlog: VecDeque::new() })
    }

    /// A status may be the other side's text, so it is not repeated. A rendezvous that is encrypted does not understand one
    /// that is not.
    fn broken(&self, status: &tonic::Status) -> String {
        let is_plain = self.terms.tls.is_none() && status.message().contains("h2 protocol error");
        let hint = if is_plain { " (if the rendezvous is encrypted, this process needs --tls-ca)" } else { "" };
        format!("it broke off the handshake{hint}")
    }

    fn unproven(&self) -> Obstacle {
        Obstacle::Unproven(format!(
            "the program at '{}' did not prove that it knows the job's secret; give every process of the job the same \
             --job-secret-file (without one, each user of a machine has another secret), and an address that no other \
             program uses",
            self.address
        ))
    }

    fn unreachable(&self, error: &tonic::transport::Error) -> Obstacle {
        let address = &self.address;
        distrust(error).map_or_else(
            || Obstacle::Passing(cause(error)),
            |why| {
                Obstacle::Unproven(format!(
                    "cannot trust the rendezvous '{address}': {why}; give every process the --tls-ca that signed its \
                     certificate"
                ))
            },
        )
    }

    /// What a refusal means to the process that is called `who`.
    pub fn refused(&self, who: &str, Refusal { reason, passing, elsewhere }: Refusal) -> Obstacle {
        let reason = sentence::line(&reason, 1000);
        let text = format!("{who} was refused at the rendezvous '{}': {reason}", self.address);
        match (elsewhere, passing) {
            (true, _) => Obstacle::Elsewhere(Error::usage(text)),
            (false, true) => Obstacle::Final(Error::PeerLost(text)),
            (false, false) => Obstacle::Final(Error::usage(text)),
        }
    }
}

/// What a session is for, on the side of a member.
pub(super) trait Duty {
    /// Takes in a message of the service.
    fn hear(&self, message: FromService);

    /// A sign of life, for the service.
    fn beat(&self) -> FromMember;

    /// Whether the end of the session is no surprise.
    fn is_over(&self) -> bool;

    /// Whether the service has forgotten this process, which should come again then.
    fn is_unknown(&self) -> bool {
        false
    }
}

/// An open session, past its handshake.
pub(super) struct Session {
    seal: Seal,
    incoming: Streaming<Envelope>,
    outgoing: mpsc::Sender<Envelope>,
    /// What waits until the connection can take it.
    backlog: VecDeque<FromMember>,
}

impl Session {
    /// The next message. Safe to cancel.
    pub async fn next(&mut self) -> std::result::Result<FromService, String> {
        let envelope = self.incoming.message().await.map_err(|_| "its connection broke".to_string())?;
        let envelope = envelope.ok_or("its connection closed")?;
        let body = self.seal.open(envelope).map_err(|forged| forged.to_string())?;
        decode(&body).map_err(|error| format!("its message is unreadable: {error}"))
    }

    /// Stays until the session ends. Answers with how the service was lost, if it was.
    pub async fn work(
        &mut self,
        duty: &impl Duty,
        commands: &mut mpsc::UnboundedReceiver<FromMember>,
        terms: &Terms,
    ) -> Option<String> {
        let mut clock = tokio::time::interval(terms.beat);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Beats are counted instead of time, so that a pause of this process itself is not held against the service.
        let most_beats = terms.timeout.div_duration_f64(terms.beat).ceil();
        let (mut unanswered, mut leaving) = (0_u32, false);
        loop {
            // Clones, so that listening and sending can be waited for side by side.
            let outgoing = self.outgoing.clone();
            tokio::select! {
                heard = self.next() => match heard {
                    Ok(message) => {
                        unanswered = 0;
                        duty.hear(message);
                        if duty.is_unknown() {
                            return Some("it does not know this process any more".into());
                        }
                    }
                    Err(how) => return (!leaving && !duty.is_over()).then_some(how),
                },
                command = commands.recv(), if self.backlog.len() < BACKLOG && !leaving => {
                    leaving = matches!(command, None | Some(FromMember::Leave(..)));
                    // The member was dropped: the connection closes without a word.
                    self.backlog.push_back(command?);
                }
                Ok(permit) = outgoing.reserve(), if !self.backlog.is_empty() => {
                    if let Some(message) = self.backlog.pop_front() {
                        permit.send(self.seal.close(encode(&message)));
                    }
                }
                _ = clock.tick(), if !leaving => {
                    if f64::from(unanswered) > most_beats {
                        return Some(format!("no sign of life for {}", sentence::span(terms.timeout)));
                    }
                    unanswered += 1;
                    self.backlog.push_back(duty.beat());
                }
            }
        }
    }
}
