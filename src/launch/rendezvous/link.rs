//! A member's side of its session: joins, keeps the heart beating, and hears the verdict.
//!
//! It runs on the member's own thread and never waits for the rest of the process, nor lets a full connection keep it
//! from listening. When the service itself is lost there is nobody to decide, so each member's link decides alone.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc as blocking};
use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, timeout, timeout_at};
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::endpoint::{cause, is_distrust};
use super::handshake::Guest;
use super::member::Shared;
use super::seal::Seal;
use super::secret::nonce;
use super::wire::{ClientBody, Envelope, FromMember, FromService, Layout, Refusal, ServerBody};
use super::{HANDSHAKE, Introduction, Terms, Verdict, rpc, sentence};
use crate::error::{Error, Result};

/// The time between two attempts to reach the service.
const RETRY: Duration = Duration::from_millis(100);
/// Requests of the process that are taken over before the connection has taken the earlier ones.
const BACKLOG: usize = 16;

/// What joining needs.
pub(super) struct Link {
    pub endpoint: Endpoint,
    pub address: String,
    pub terms: Terms,
    pub me: Introduction,
    pub shared: Arc<Shared>,
}

/// Why an attempt to join did not succeed.
enum Obstacle {
    /// It may be gone next time.
    Passing(String),
    /// Another attempt would meet it again.
    Final(Error),
}

impl Link {
    /// Joins and stays until the session ends. `joined` gets all members in rank order, or why there are none.
    pub async fn run(
        self,
        patience: Duration,
        commands: mpsc::UnboundedReceiver<FromMember>,
        joined: blocking::Sender<Result<Vec<Introduction>>>,
    ) {
        match self.join(patience).await {
            Err(error) => drop(joined.send(Err(error))),
            Ok((mut session, members)) => {
                // A caller that went away drops the commands too, which ends the session.
                let _ = joined.send(Ok(members));
                let ending = session.work(&self.shared, commands, &self.terms).await;
                self.conclude(ending);
            }
        }
    }

    fn conclude(&self, ending: Option<String>) {
        if let Some(how) = ending {
            let place = sentence::place(&self.shared.activity().text);
            let text = format!("rank 0 (the rendezvous at {}) was lost at {place}: {how}", self.address);
            self.shared.fate.decide(Verdict(text));
        }
        self.shared.hang_up();
    }

    async fn join(&self, patience: Duration) -> Result<(Session, Vec<Introduction>)> {
        let now = Instant::now();
        let deadline = now.checked_add(patience).unwrap_or(now + Duration::from_secs(1 << 30));
        let mut obstacle = "no answer".to_string();
        loop {
            match timeout_at(deadline, self.attempt(&mut obstacle)).await {
                Ok(Ok(joined)) => return Ok(joined),
                Ok(Err(Obstacle::Final(error))) => return Err(error),
                Ok(Err(Obstacle::Passing(why))) => obstacle = why,
                Err(_) => {}
            }
            if Instant::now() + RETRY >= deadline {
                let (address, span) = (&self.address, sentence::span(patience));
                return Err(Error::PeerLost(format!(
                    "rank {} did not meet everybody at the rendezvous '{address}' within {span}: {obstacle}; start all \
                     processes, or wait longer with --dist-timeout",
                    self.me.rank
                )));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// `obstacle` says what is being waited for, should the time be over before this returns.
    async fn attempt(&self, obstacle: &mut String) -> std::result::Result<(Session, Vec<Introduction>), Obstacle> {
        let silent = |_| Obstacle::Passing("no answer".into());
        let mut session = timeout(HANDSHAKE, self.meet()).await.map_err(silent)??;
        loop {
            match session.next().await.map_err(Obstacle::Passing)? {
                Some(FromService::Waiting(missing)) if missing.is_empty() => {}
                Some(FromService::Waiting(missing)) => *obstacle = format!("{missing} did not come"),
                Some(FromService::Layout(layout)) => return self.settle(layout).map(|members| (session, members)),
                Some(FromService::Refusal(refusal)) => return Err(self.refused(refusal)),
                Some(FromService::Verdict(verdict)) => return Err(Obstacle::Final(Error::PeerLost(verdict))),
                _ => {}
            }
        }
    }

    /// Connects, and proves the secret in both directions.
    async fn meet(&self) -> std::result::Result<Session, Obstacle> {
        let channel = self.endpoint.connect().await.map_err(|error| self.unreachable(&error))?;
        let (outgoing, envelopes) = mpsc::channel(rpc::QUEUE);
        let gone = |_| Obstacle::Passing("its connection closed".into());
        let guest = Guest::new(&self.terms, &self.me, nonce());
        outgoing.send(guest.hello()).await.map_err(gone)?;
        let broke = |status: tonic::Status| Obstacle::Passing(self.broken(status.message()));
        let mut incoming = rpc::open(channel, envelopes).await.map_err(broke)?;
        let challenge = incoming.message().await.map_err(broke)?;
        let challenge = challenge.ok_or_else(|| Obstacle::Passing("it closed the connection".into()))?;
        let (seal, proof) = guest.answer(&challenge).map_err(|refusal| self.refused(refusal))?;
        outgoing.send(proof).await.map_err(gone)?;
        Ok(Session { seal, incoming, outgoing, backlog: VecDeque::new() })
    }

    /// Why the conversation ended; a rendezvous that is encrypted does not understand one that is not.
    fn broken(&self, reason: &str) -> String {
        let hint = if self.terms.tls.is_none() && reason.contains("h2 protocol error") {
            " (if the rendezvous is encrypted, this process needs --tls-ca)"
        } else {
            ""
        };
        sentence::line(reason, 200) + hint
    }

    fn unreachable(&self, error: &tonic::transport::Error) -> Obstacle {
        let why = cause(error);
        if !is_distrust(error) {
            return Obstacle::Passing(why);
        }
        let address = &self.address;
        Obstacle::Final(Error::usage(format!(
            "cannot trust the rendezvous '{address}': {why}; give every process the --tls-ca that signed its certificate"
        )))
    }

    fn refused(&self, Refusal { reason, passing }: Refusal) -> Obstacle {
        let reason = sentence::line(&reason, 1000);
        let text = format!("rank {} was refused at the rendezvous '{}': {reason}", self.me.rank, self.address);
        Obstacle::Final(if passing { Error::PeerLost(text) } else { Error::usage(text) })
    }

    /// The configuration is everybody's, so it does not travel.
    fn settle(&self, layout: Layout) -> std::result::Result<Vec<Introduction>, Obstacle> {
        let configured = |it| Introduction { configuration: self.me.configuration.clone(), ..Introduction::from(it) };
        let members: Vec<_> = layout.members.into_iter().map(configured).collect();
        if !members.iter().map(|it| it.rank).eq(0..self.terms.size) {
            return Err(Obstacle::Passing("its list of members is not whole".into()));
        }
        Ok(members)
    }
}

struct Session {
    seal: Seal,
    incoming: Streaming<Envelope>,
    outgoing: mpsc::Sender<Envelope>,
    /// What waits until the connection can take it.
    backlog: VecDeque<FromMember>,
}

impl Session {
    /// The next message; `None` for one of a kind that this version does not know. Safe to cancel.
    async fn next(&mut self) -> std::result::Result<Option<FromService>, String> {
        let envelope = self.incoming.message().await.map_err(|_| "its connection broke".to_string())?;
        let envelope = envelope.ok_or("its connection closed")?;
        let body = self.seal.open(envelope).map_err(|forged| forged.to_string())?;
        let body =
            ServerBody::decode(body.as_slice()).map_err(|error| format!("its message was no message: {error}"))?;
        Ok(body.message)
    }

    /// Stays until the session ends. Answers with how the service was lost, if it was.
    async fn work(
        &mut self,
        shared: &Shared,
        mut commands: mpsc::UnboundedReceiver<FromMember>,
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
                        message.into_iter().for_each(|message| shared.hear(message));
                    }
                    Err(how) => return (!leaving && shared.fate.verdict().is_none()).then_some(how),
                },
                command = commands.recv(), if self.backlog.len() < BACKLOG && !leaving => {
                    leaving = matches!(command, None | Some(FromMember::Leave(_)));
                    // The member was dropped: the connection closes without a word.
                    self.backlog.push_back(command?);
                }
                Ok(permit) = outgoing.reserve(), if !self.backlog.is_empty() => {
                    let message = self.backlog.pop_front().map(ClientBody::from).unwrap_or_default();
                    permit.send(self.seal.close(message.encode_to_vec()));
                }
                _ = clock.tick(), if !leaving => {
                    if f64::from(unanswered) > most_beats {
                        return Some(format!("no sign of life for {}", sentence::span(terms.timeout)));
                    }
                    unanswered += 1;
                    self.backlog.push_back(FromMember::Beat(shared.activity()));
                }
            }
        }
    }
}
