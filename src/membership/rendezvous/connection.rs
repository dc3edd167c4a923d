//! A member's side of a session: connects, greets, then sends messages and heartbeats and receives messages.
//!
//! It never waits for the rest of the process, and a connection that is full does not stop it from receiving.

use std::collections::VecDeque;
use std::time::Duration;

use kiln_system::{Error, Result};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::endpoint::{cause, distrust, endpoint, is_refused};
use super::refusal::Refusal;
use super::shared_state::SharedState;
use super::wire::{Envelope, FromMember, FromService, decode, encode};
use super::{Terms, greeting, rpc, sentence};

/// How many messages may wait for the connection before no more are taken from the process.
const BACKLOG: usize = 16;
/// Why an attempt failed at a process that holds an address of the rendezvous and does not lead.
pub(super) const NO_LEADER: &str =
    "no process at that address is the leader; a majority of the addresses of --dist-url must be held";

/// Why an attempt to join failed. It quotes the other side only after a proof.
pub(super) enum DialError {
    /// No complete answer; another attempt may succeed.
    Transient(String),
    /// No program listens there; another attempt may succeed once one does.
    Absent(String),
    /// The other side did not prove that it knows the secret. It may be another program, or the secret may be wrong.
    Unproven(String),
    /// The other side knows the secret and serves another job.
    OtherJob(Error),
    /// The service refuses this process, and would refuse it again.
    Final(Error),
}

/// Opens sessions with the service at one address.
pub(super) struct Dialer {
    endpoint: Endpoint,
    pub address: String,
    pub terms: Terms,
}

impl Dialer {
    /// One for each of the addresses, which are joined by commas. To be called within a runtime.
    pub(crate) fn all(addresses: &str, terms: &Terms) -> Result<Vec<Self>> {
        addresses.split(',').map(|address| Self::new(address, terms)).collect()
    }

    /// `address` is `host:port`. To be called within a runtime.
    pub(crate) fn new(address: &str, terms: &Terms) -> Result<Self> {
        Ok(Self { endpoint: endpoint(address, terms)?, address: address.into(), terms: terms.clone() })
    }

    /// Connects, and greets the service, within `limit`; `who` is what a refusal calls this process.
    pub(crate) async fn dial(
        &self,
        introduction: Vec<u8>,
        who: &str,
        limit: Duration,
    ) -> std::result::Result<Session, DialError> {
        let silent = |_| DialError::Transient("no answer".into());
        tokio::time::timeout(limit, self.greet(introduction, who)).await.map_err(silent)?
    }

    async fn greet(&self, introduction: Vec<u8>, who: &str) -> std::result::Result<Session, DialError> {
        let channel = self.endpoint.connect().await.map_err(|error| self.unreachable(&error))?;
        let (outgoing, envelopes) = mpsc::channel(rpc::QUEUE);
        let gone = |_| DialError::Transient("its connection closed".into());
        outgoing.send(greeting::hello(&self.terms)).await.map_err(gone)?;
        let broke = |_: tonic::Status| self.broken();
        let mut incoming = rpc::open(channel, envelopes).await.map_err(broke)?;
        let answer = incoming.message().await.map_err(broke)?;
        let answer = answer.ok_or_else(|| DialError::Transient("it closed the connection".into()))?;
        if let Some(refusal) = greeting::refusal(&answer) {
            return Err(self.refused(who, refusal));
        }
        outgoing.send(Envelope { body: introduction }).await.map_err(gone)?;
        Ok(Session { incoming, outgoing, backlog: VecDeque::new() })
    }

    /// The connection broke. Who encrypts ends one that does not: with an alert or, if that is lost, without a word.
    fn broken(&self) -> DialError {
        if !self.terms.secret.is_none() {
            return DialError::Transient("it aborted the greeting".into());
        }
        DialError::Unproven(format!(
            "the program at '{}' requires encryption, so it is not the rendezvous of a job without a secret; use the \
             --job-secret-file of the job instead of --insecure, or another address",
            self.address
        ))
    }

    fn unreachable(&self, error: &tonic::transport::Error) -> DialError {
        match distrust(error) {
            Some(how) => DialError::Unproven(format!(
                "the program at '{}' did not prove that it knows the job's secret ({how}); give every process of the \
                 job the same --job-secret-file (without one, each user of a machine has a different secret), and an \
                 address that no other program uses",
                self.address
            )),
            None if is_refused(error) => DialError::Absent(cause(error)),
            None => DialError::Transient(cause(error)),
        }
    }

    /// The error for a refusal of the process that is called `who`.
    pub(crate) fn refused(&self, who: &str, Refusal { reason, transient, other_job }: Refusal) -> DialError {
        let reason = sentence::line(&reason, 1000);
        let text = format!("{who} was refused at the rendezvous '{}': {reason}", self.address);
        match (other_job, transient) {
            (true, _) => DialError::OtherJob(Error::usage(text)),
            (false, true) => DialError::Final(Error::PeerLost(text)),
            (false, false) => DialError::Final(Error::usage(text)),
        }
    }
}

/// An open session, past its greeting.
pub(super) struct Session {
    incoming: Streaming<Envelope>,
    outgoing: mpsc::Sender<Envelope>,
    /// The messages that wait for the connection.
    backlog: VecDeque<FromMember>,
}

impl Session {
    /// The next message; cancel-safe.
    pub(crate) async fn next(&mut self) -> std::result::Result<FromService, String> {
        let envelope = self.incoming.message().await.map_err(|_| "its connection broke".to_string())?;
        let envelope = envelope.ok_or("its connection closed")?;
        decode(&envelope.body).map_err(|error| format!("its message is unreadable: {error}"))
    }

    /// Runs the session until it ends; returns how the service was lost, if it was.
    pub(crate) async fn work(
        &mut self,
        shared: &SharedState,
        commands: &mut mpsc::UnboundedReceiver<FromMember>,
        terms: &Terms,
    ) -> Option<String> {
        let mut clock = tokio::time::interval(terms.beat);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Counts heartbeats instead of time, so that a pause of this process does not look like a loss of the service.
        let most_beats = terms.silence().div_duration_f64(terms.beat).ceil();
        let (mut unanswered, mut leaving) = (0_u32, false);
        loop {
            // A clone, so that receiving and sending can be awaited together.
            let outgoing = self.outgoing.clone();
            tokio::select! {
                received = self.next() => match received {
                    Ok(message) => {
                        unanswered = 0;
                        shared.handle_message(message);
                        if shared.is_unknown() {
                            return Some("it no longer knows this process".into());
                        }
                    }
                    Err(how) => return (!leaving && !shared.is_over()).then_some(how),
                },
                command = commands.recv(), if self.backlog.len() < BACKLOG && !leaving => {
                    leaving = matches!(command, None | Some(FromMember::Leave(..)));
                    // If the member was dropped, the connection closes without a leave.
                    self.backlog.push_back(command?);
                }
                Ok(permit) = outgoing.reserve(), if !self.backlog.is_empty() => {
                    if let Some(message) = self.backlog.pop_front() {
                        permit.send(Envelope { body: encode(&message) });
                    }
                }
                _ = clock.tick(), if !leaving => {
                    if f64::from(unanswered) > most_beats {
                        return Some(format!("no sign of life for {}", sentence::span(terms.silence())));
                    }
                    unanswered += 1;
                    self.backlog.push_back(shared.beat());
                }
            }
        }
    }
}
