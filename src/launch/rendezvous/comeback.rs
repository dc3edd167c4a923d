//! The thread that keeps a participant's session with the service, and opens a new one whenever it is lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use tokio::sync::mpsc;

use super::connection::{Caller, Duty, Obstacle, Session};
use super::elastic_wire::{Purpose, Visit};
use super::link::RETRY;
use super::news::{End, Shared};
use super::sentence;
use super::wire::{FromMember, FromService};
use crate::error::Error;

/// What is done before each attempt to reach the service: hold it, if nobody does and it belongs on this machine.
pub type BeforeAttempt = Box<dyn FnMut() + Send + Sync>;

/// What coming, and coming again, needs.
pub(super) struct Comeback {
    pub caller: Caller,
    pub shared: Arc<Shared>,
    pub before_attempt: BeforeAttempt,
}

impl Comeback {
    /// Keeps sessions until this process is out of the job.
    pub async fn run(mut self, mut commands: mpsc::UnboundedReceiver<FromMember>) {
        let mut obstacle = Obstacle::Passing("no answer".into());
        let (mut has_met, mut has_warned) = (false, false);
        while !self.shared.is_over() {
            (self.before_attempt)();
            let sent = Instant::now();
            match self.attempt().await {
                Ok((mut session, first)) => {
                    (has_met, has_warned) = (true, false);
                    self.shared.change(|news| {
                        (news.absent, news.is_known, news.bulletin) = (None, false, None);
                        news.session += 1;
                        (news.confirmed, news.beats) = (Some(sent), VecDeque::new());
                    });
                    first.into_iter().for_each(|message| self.shared.hear(message));
                    let how = session.work(self.shared.as_ref(), &mut commands, &self.caller.terms).await;
                    let Some(how) = how else { break };
                    tracing::debug!("lost the rendezvous '{}': {how}", self.caller.address);
                    obstacle = Obstacle::Passing(how);
                    self.shared.change(|news| news.absent = Some(Instant::now()));
                    self.shared.requests.give_up();
                }
                Err(Obstacle::Final(error)) => self.end(error),
                // A member's own service does not become that of another job: it will be back at this address.
                Err(Obstacle::Elsewhere(error)) if !has_met => self.end(error),
                Err(other) => obstacle = other,
            }
            obstacle.warn_once(&mut has_warned, self.shared.patience);
            self.give_up_after(&obstacle, has_met);
            tokio::time::sleep(RETRY).await;
        }
        self.shared.requests.close();
    }

    /// A session, and the first message of it.
    async fn attempt(&self) -> Result<(Session, Option<FromService>), Obstacle> {
        let (who, newcomer) = {
            let news = self.shared.news();
            (format!("host {}, process {}", news.me.host, news.me.process), news.me.clone())
        };
        let visit = Visit { purpose: Some(Purpose::Join(newcomer.into())) };
        let mut session = self.caller.call(visit.encode_to_vec(), &who).await?;
        match session.next().await.map_err(Obstacle::Passing)? {
            Some(FromService::Refusal(refusal)) => Err(self.caller.refused(&who, refusal)),
            first => Ok((session, first)),
        }
    }

    fn end(&self, error: Error) {
        let end = match error {
            Error::Usage(lines) => End::Refused(lines),
            other => End::Lost(other.to_string()),
        };
        self.shared.change(|news| {
            news.end.get_or_insert(end);
        });
    }

    fn give_up_after(&self, obstacle: &Obstacle, has_met: bool) {
        let (patience, address) = (self.shared.patience, &self.caller.address);
        let span = sentence::span(patience);
        let lost = |why: &str| {
            End::Lost(format!(
                "the rendezvous '{address}' could not be reached for {span}: {why}; start it again, or wait longer \
                 with --elastic-timeout"
            ))
        };
        let end = || match obstacle {
            Obstacle::Unproven(why) if !has_met => {
                End::Refused(vec![format!("this process did not meet its job within {span}: {why}")])
            }
            Obstacle::Passing(why) | Obstacle::Unproven(why) => lost(why),
            Obstacle::Elsewhere(error) | Obstacle::Final(error) => lost(&error.to_string()),
        };
        self.shared.change(|news| {
            if news.absent.is_some_and(|since| since.elapsed() > patience) {
                news.end.get_or_insert_with(end);
            }
        });
    }
}
