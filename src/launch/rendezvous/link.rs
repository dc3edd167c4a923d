//! A member's link with the service in a job of fixed membership: joins, and hears the verdict.
//!
//! It runs on the member's own thread. When the service itself is lost there is nobody to decide, so each member's link
//! decides alone.

use std::sync::{Arc, mpsc as blocking};
use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::connection::{Caller, Obstacle, Session};
use super::member::Shared;
use super::wire::{FromMember, FromService, Layout, Person};
use super::{Introduction, Verdict, sentence};
use crate::error::{Error, Result};

/// The time between two attempts to reach the service.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// What joining needs.
pub(super) struct Link {
    pub caller: Caller,
    pub me: Introduction,
    pub shared: Arc<Shared>,
}

impl Link {
    /// Joins and stays until the session ends. `joined` gets all members in rank order, or why there are none.
    pub async fn run(
        self,
        patience: Duration,
        mut commands: mpsc::UnboundedReceiver<FromMember>,
        joined: blocking::Sender<Result<Vec<Introduction>>>,
    ) {
        match self.join(patience).await {
            Err(error) => drop(joined.send(Err(error))),
            Ok((mut session, members)) => {
                // A caller that went away drops the commands too, which ends the session.
                let _ = joined.send(Ok(members));
                let ending = session.work(self.shared.as_ref(), &mut commands, &self.caller.terms).await;
                self.conclude(ending);
            }
        }
    }

    fn conclude(&self, ending: Option<String>) {
        if let Some(how) = ending {
            let place = sentence::place(&self.shared.activity().text);
            let text = format!("rank 0 (the rendezvous at {}) was lost at {place}: {how}", self.caller.address);
            self.shared.fate.decide(Verdict(text));
        }
        self.shared.requests.close();
    }

    async fn join(&self, patience: Duration) -> Result<(Session, Vec<Introduction>)> {
        let now = Instant::now();
        let deadline = now.checked_add(patience).unwrap_or(now + Duration::from_secs(1 << 30));
        let (mut obstacle, mut has_warned) = (Obstacle::Passing("no answer".into()), false);
        loop {
            match timeout_at(deadline, self.attempt(&mut obstacle)).await {
                Ok(Ok(joined)) => return Ok(joined),
                Ok(Err(Obstacle::Final(error) | Obstacle::Elsewhere(error))) => return Err(error),
                Ok(Err(other)) => obstacle = other,
                Err(_) => {}
            }
            obstacle.warn_once(&mut has_warned, patience);
            if Instant::now() + RETRY >= deadline {
                return Err(self.give_up(obstacle, patience));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn give_up(&self, obstacle: Obstacle, patience: Duration) -> Error {
        let (rank, address, span) = (self.me.rank, &self.caller.address, sentence::span(patience));
        match obstacle {
            Obstacle::Passing(why) => Error::PeerLost(format!(
                "rank {rank} did not meet everybody at the rendezvous '{address}' within {span}: {why}; start all \
                 processes, or wait longer with --dist-timeout"
            )),
            Obstacle::Unproven(why) => Error::usage(format!("rank {rank} did not meet its job within {span}: {why}")),
            Obstacle::Elsewhere(error) | Obstacle::Final(error) => error,
        }
    }

    /// `obstacle` says what is being waited for, should the time be over before this returns.
    async fn attempt(&self, obstacle: &mut Obstacle) -> std::result::Result<(Session, Vec<Introduction>), Obstacle> {
        let (who, introduction) = (format!("rank {}", self.me.rank), Person::from(&self.me).encode_to_vec());
        let mut session = self.caller.call(introduction, &who).await?;
        loop {
            match session.next().await.map_err(Obstacle::Passing)? {
                Some(FromService::Waiting(missing)) if missing.is_empty() => {}
                Some(FromService::Waiting(missing)) => *obstacle = Obstacle::Passing(format!("{missing} did not come")),
                Some(FromService::Layout(layout)) => return self.settle(layout).map(|members| (session, members)),
                Some(FromService::Refusal(refusal)) => return Err(self.caller.refused(&who, refusal)),
                Some(FromService::Verdict(verdict)) => return Err(Obstacle::Final(Error::PeerLost(verdict))),
                _ => {}
            }
        }
    }

    /// The configuration is everybody's, so it does not travel.
    fn settle(&self, layout: Layout) -> std::result::Result<Vec<Introduction>, Obstacle> {
        let configured = |it| Introduction { configuration: self.me.configuration.clone(), ..Introduction::from(it) };
        let members: Vec<_> = layout.members.into_iter().map(configured).collect();
        if !members.iter().map(|it| it.rank).eq(0..self.caller.terms.size) {
            return Err(Obstacle::Passing("its list of members is incomplete".into()));
        }
        Ok(members)
    }
}
