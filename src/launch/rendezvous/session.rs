//! One session of the service with one member, from the greeting to the leave.
//!
//! It translates: envelopes into messages for the policy, news into envelopes. Input that is no member's ends the session;
//! it never reaches the policy, nor do its words reach the log. Time limits before admission are those of `admission`. A
//! member that loses its seat hears of it, and has some time to go by itself.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Status, Streaming};

use super::admission::Pass;
use super::bulletin::Seat;
use super::handshake::Host;
use super::refusal::Refusal;
use super::seal::Seal;
use super::secret::nonce;
use super::state::{Admitted, State};
use super::wire::{Envelope, FromMember, FromService, decode, encode};

/// The most `Get`s of one member that may wait at a time.
const MOST_GETS: usize = 64;
/// How long a member may stay that has no seat any more.
const FAREWELL: Duration = Duration::from_secs(5);

type Outgoing = mpsc::Sender<Result<Envelope, Status>>;

/// Why a session ends.
enum End {
    /// The member took its leave.
    Left,
    /// The service ends, and all is said.
    Closing,
    /// It broke off, as in "its connection closed".
    Broken(String),
}

/// Serves one call of the method, whoever makes it.
pub(super) async fn serve(state: Arc<State>, pass: Pass, mut incoming: Streaming<Envelope>, outgoing: Outgoing) {
    let (mut seal, seat) = match greet(&state, &mut incoming, &outgoing).await {
        Ok(Some(admitted)) => admitted,
        Ok(None) => return,
        Err(why) => return state.knocks.note(pass.peer.ip(), &why),
    };
    pass.admit();
    let mut session = Session { state: &state, seat, seal: &mut seal, outgoing, gets: JoinSet::new() };
    tokio::select! {
        end = session.work(&mut incoming) => {
            if let End::Broken(how) = end {
                state.miss(seat, how);
            }
        }
        // It may be stopped, or its machine gone: then its connection would stay forever.
        () = unseated(&state, seat) => pass.dismiss(),
    }
}

/// Returns some time after `seat` was taken from its member.
async fn unseated(state: &State, seat: Seat) {
    let mut news = state.news.subscribe();
    while state.has(seat) && news.changed().await.is_ok() {}
    tokio::time::sleep(FAREWELL).await;
}

/// The handshake and the policy's consent; answers with the member's seat, nothing for a visitor, or what to log.
async fn greet(
    state: &State,
    incoming: &mut Streaming<Envelope>,
    outgoing: &Outgoing,
) -> Result<Option<(Seal, Seat)>, String> {
    let met = meet(state, incoming, outgoing).await?;
    let (mut seal, introduction) = match met {
        Ok(met) => met,
        Err((answer, why)) => {
            send(answer, outgoing).await;
            return Err(why.into());
        }
    };
    match introduction.and_then(|introduction| state.admit(&introduction)) {
        Ok(Admitted::Member(seat)) => Ok(Some((seal, seat))),
        Ok(Admitted::Visitor(answer)) => {
            send(seal.close(encode(&answer)), outgoing).await;
            Ok(None)
        }
        Err(refusal) => {
            send(seal.close(encode(&FromService::Refusal(refusal.clone()))), outgoing).await;
            Err(super::sentence::line(&refusal.reason, 600))
        }
    }
}

/// The key of the session and what the member says of itself, or what to answer, and what to log.
type Met = Result<(Seal, Result<Vec<u8>, Refusal>), (Envelope, &'static str)>;

async fn meet(state: &State, incoming: &mut Streaming<Envelope>, outgoing: &Outgoing) -> Result<Met, String> {
    let hello = next(incoming).await?;
    let (host, challenge) = match Host::greet(&state.terms, &hello, nonce()) {
        Ok(greeted) => greeted,
        Err(refusal) => {
            return Ok(Err((refusal.proven(&state.terms, &hello), "it greeted another job, or is of another build")));
        }
    };
    outgoing.send(Ok(challenge)).await.map_err(|_| "it went away during the handshake".to_string())?;
    let admitted = host.admit(&next(incoming).await?);
    Ok(admitted.map_err(|refusal| (refusal.bare(), "it did not prove that it knows the job's secret")))
}

/// Whoever has gone does not want to know.
async fn send(envelope: Envelope, outgoing: &Outgoing) {
    let _ = outgoing.send(Ok(envelope)).await;
}

async fn next(incoming: &mut Streaming<Envelope>) -> Result<Envelope, String> {
    match incoming.message().await {
        Ok(Some(envelope)) => Ok(envelope),
        Ok(None) => Err("it went away during the handshake, as one does that has another secret".into()),
        Err(_) => Err("its connection broke during the handshake".into()),
    }
}

struct Session<'a> {
    state: &'a State,
    seat: Seat,
    seal: &'a mut Seal,
    outgoing: Outgoing,
    /// Answers that wait for keys to be set.
    gets: JoinSet<Vec<FromService>>,
}

impl Session<'_> {
    async fn work(&mut self, incoming: &mut Streaming<Envelope>) -> End {
        let mut news = self.state.news.subscribe();
        let mut closing = self.state.closing.subscribe();
        let mut closed = pin!(async { closing.wait_for(|closing| *closing).await.map(drop) });
        let mut is_closing = false;
        // The admission itself is news to this member.
        news.mark_changed();
        loop {
            let step = tokio::select! {
                message = incoming.message() => match message {
                    Ok(Some(envelope)) => self.take(envelope).await,
                    // How a connection ends says little about why: a process that was killed may do it either way.
                    Ok(None) | Err(_) => Err(End::Broken("its connection closed".into())),
                },
                Some(answers) = self.gets.join_next() => self.send_all(answers.unwrap_or_default()).await,
                Ok(()) = news.changed() => {
                    let latest = news.borrow_and_update().clone();
                    self.send(latest).await
                }
                _ = &mut closed, if !is_closing => {
                    is_closing = true;
                    Ok(())
                }
            };
            if let Err(end) = step {
                return end;
            }
            if is_closing && !self.state.at_work() && !news.has_changed().unwrap_or_default() {
                return End::Closing;
            }
        }
    }

    async fn take(&mut self, envelope: Envelope) -> Result<(), End> {
        let body = self.seal.open(envelope).map_err(|forged| End::Broken(forged.to_string()))?;
        let message = decode(&body).map_err(|error| End::Broken(format!("its message could not be read ({error})")))?;
        match message {
            FromMember::Set { id, key, value } => {
                let set = self.state.store.set(key, value);
                self.send(set.map_or_else(|why| FromService::Denied(id, why), |()| FromService::Value(id, Vec::new())))
                    .await
            }
            FromMember::Get { id, keys, limit } => self.look_up(id, keys, limit).await,
            message => {
                let (beats, leaves) =
                    (matches!(message, FromMember::Beat(_)), matches!(message, FromMember::Leave(..)));
                self.state.hear(self.seat, message);
                match (beats, leaves) {
                    (true, _) => self.send(FromService::Alive).await,
                    (_, true) => Err(End::Left),
                    _ => Ok(()),
                }
            }
        }
    }

    async fn look_up(&mut self, id: u64, keys: Vec<String>, limit: Duration) -> Result<(), End> {
        if self.gets.len() >= MOST_GETS {
            let reason = format!("more than {MOST_GETS} requests of one process wait");
            return self.send(FromService::Denied(id, reason)).await;
        }
        let store = Arc::clone(&self.state.store);
        self.gets.spawn(async move {
            match store.get(&keys, limit).await {
                Ok(values) => values.into_iter().map(|value| FromService::Value(id, value)).collect(),
                Err(reason) => vec![FromService::Denied(id, reason)],
            }
        });
        Ok(())
    }

    async fn send_all(&mut self, answers: Vec<FromService>) -> Result<(), End> {
        for answer in answers {
            self.send(answer).await?;
        }
        Ok(())
    }

    async fn send(&mut self, message: FromService) -> Result<(), End> {
        let envelope = self.seal.close(encode(&message));
        self.outgoing.send(Ok(envelope)).await.map_err(|_| End::Broken("its connection closed".into()))
    }
}
