//! The service's side of one session, from the greeting to the leave.
//!
//! Decodes messages for the roster and sends its announcements. `admission` limits the time of the greeting. A member
//! that the roster has removed is told so, and has some time to close the session itself.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Status, Streaming};

use super::admission::ConnectionHandle;
use super::greeting;
use super::membership::{Event, SessionId};
use super::service_state::{Admitted, ServiceState};
use super::wire::{Envelope, FromMember, FromService, decode, encode};

/// How many `Get`s of one member may wait at a time.
const MOST_GETS: usize = 64;
/// How long a removed member may keep its session.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

type Outgoing = mpsc::Sender<Result<Envelope, Status>>;

enum End {
    Left,
    /// The service ends, and the last announcement was sent; or it leads no more.
    Closing,
    /// It broke off, as in "its connection closed".
    Broken(String),
}

pub(super) async fn serve(
    state: Arc<ServiceState>,
    handle: ConnectionHandle,
    mut incoming: Streaming<Envelope>,
    outgoing: Outgoing,
) {
    handle.prove();
    let id = match greet(&state, &mut incoming, &outgoing).await {
        Ok(Some(id)) => id,
        Ok(None) => return,
        Err(why) => return state.rejections.note(handle.peer.ip(), &why),
    };
    handle.admit();
    let mut session = Session { state: &state, id, outgoing, gets: JoinSet::new() };
    tokio::select! {
        end = session.work(&mut incoming) => {
            if let End::Broken(how) = end {
                state.notify(Event::Closed(id, how));
            }
        }
        // If the process is stopped or its machine is gone, it would never close its connection.
        () = removed(&state, id) => handle.dismiss(),
    }
}

/// Returns some time after the member of session `id` was removed.
async fn removed(state: &ServiceState, id: SessionId) {
    let mut updates = state.latest.subscribe();
    while state.is_member(id) && updates.changed().await.is_ok() {}
    tokio::time::sleep(LEAVE_TIMEOUT).await;
}

/// The greeting and the roster's decision; returns the session of a member, `None` for a query, or the line to log.
async fn greet(
    state: &ServiceState,
    incoming: &mut Streaming<Envelope>,
    outgoing: &Outgoing,
) -> Result<Option<SessionId>, String> {
    let mut next = async || {
        let gone = || "it disconnected before its first request".to_string();
        incoming.message().await.ok().flatten().ok_or_else(gone)
    };
    // A closed connection is noticed later.
    let send = async |envelope| drop(outgoing.send(Ok(envelope)).await);
    if let Err(refusal) = greeting::greet(&state.terms, &next().await?) {
        send(greeting::answer(Some(refusal))).await;
        return Err("it belongs to another job or another build".into());
    }
    send(greeting::answer(None)).await;
    match state.admit(&next().await?.body) {
        Ok(Admitted::Member(id)) => Ok(Some(id)),
        Ok(Admitted::Query(answer)) => {
            send(Envelope { body: encode(&answer) }).await;
            Ok(None)
        }
        Err(refusal) => {
            send(Envelope { body: encode(&FromService::Refusal(refusal.clone())) }).await;
            Err(super::sentence::line(&refusal.reason, 600))
        }
    }
}

struct Session<'a> {
    state: &'a ServiceState,
    id: SessionId,
    outgoing: Outgoing,
    /// Answers that wait for keys to be set.
    gets: JoinSet<Vec<FromService>>,
}

impl Session<'_> {
    async fn work(&mut self, incoming: &mut Streaming<Envelope>) -> End {
        let mut updates = self.state.latest.subscribe();
        let mut closing = self.state.closing.subscribe();
        let mut closed = pin!(async { closing.wait_for(|closing| *closing).await.map(drop) });
        let mut is_closing = false;
        // This member has not got the announcement of its own admission.
        updates.mark_changed();
        loop {
            let step = tokio::select! {
                message = incoming.message() => match message {
                    Ok(Some(envelope)) => self.take(envelope).await,
                    // The connection of a process that was killed may end either way.
                    Ok(None) | Err(_) => Err(End::Broken("its connection closed".into())),
                },
                Some(answers) = self.gets.join_next() => self.send_all(answers.unwrap_or_default()).await,
                Ok(()) = updates.changed() => {
                    let latest = updates.borrow_and_update().clone();
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
            if is_closing && !self.state.is_busy() && !updates.has_changed().unwrap_or_default() {
                return End::Closing;
            }
        }
    }

    async fn take(&mut self, envelope: Envelope) -> Result<(), End> {
        let message =
            decode(&envelope.body).map_err(|error| End::Broken(format!("its message could not be read ({error})")))?;
        self.validity()?;
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
                self.state.handle_message(self.id, message);
                match (beats, leaves) {
                    (true, _) => self.send(FromService::Alive(self.validity()?)).await,
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

    /// How long what is said now holds.
    fn validity(&self) -> Result<Duration, End> {
        self.state.validity(self.id).ok_or(End::Closing)
    }

    async fn send(&mut self, message: FromService) -> Result<(), End> {
        self.validity()?;
        let envelope = Envelope { body: encode(&message) };
        self.outgoing.send(Ok(envelope)).await.map_err(|_| End::Broken("its connection closed".into()))
    }
}
