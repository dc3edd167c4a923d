//! The thread that keeps a client's session with the service, and opens a new one whenever it is lost.
//!
//! A job of fixed membership ends with its service: when that is lost there is nobody to decide, so each member decides
//! alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::connection::{Caller, Duty, Obstacle, Session};
use super::eligibility::short_name;
use super::news::{End, Shared};
use super::sentence::{place, span};
use super::wire::{FromMember, FromService, Purpose, encode};
use crate::error::Error;

/// The time between two attempts to reach the service.
const RETRY: Duration = Duration::from_millis(100);

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
        let (mut has_met, mut has_warned) = (false, false);
        while !self.shared.is_over() {
            (self.before_attempt)();
            let sent = Instant::now();
            let obstacle = match self.attempt().await {
                Ok((mut session, first)) => {
                    has_warned = false;
                    self.begin(sent, first);
                    let how = session.work(self.shared.as_ref(), &mut commands, &self.caller.terms).await;
                    let Some(how) = how else { break };
                    has_met = !self.part(&how);
                    Obstacle::Passing(how)
                }
                Err(Obstacle::Final(error)) => {
                    self.end(error);
                    break;
                }
                // A member's own service does not become that of another job: it will be back at this address.
                Err(Obstacle::Elsewhere(error)) if has_met => Obstacle::Passing(error.to_string()),
                Err(Obstacle::Elsewhere(error)) => {
                    self.end(error);
                    break;
                }
                Err(other) => other,
            };
            self.note(obstacle, &mut has_warned);
            tokio::time::sleep(RETRY).await;
        }
        self.shared.requests.close();
    }

    /// A session, and the first message of it.
    async fn attempt(&self) -> Result<(Session, FromService), Obstacle> {
        let newcomer = self.shared.news().me.clone();
        let who = short_name(&newcomer);
        let mut session = self.caller.call(encode(&Purpose::Join(newcomer)), &who).await?;
        self.shared.news().is_introduced = true;
        let limit = self.caller.terms.timeout;
        let silent = |_| Obstacle::Passing(format!("no answer to its introduction for {}", span(limit)));
        let first = tokio::time::timeout(limit, session.next()).await.map_err(silent)?;
        match first.map_err(Obstacle::Passing)? {
            FromService::Refusal(refusal) => Err(self.caller.refused(&who, refusal)),
            first => Ok((session, first)),
        }
    }

    fn begin(&self, sent: Instant, first: FromService) {
        self.shared.change(|news| {
            (news.absent, news.is_known, news.bulletin) = (None, false, None);
            news.is_introduced = false;
            news.session += 1;
            (news.confirmed, news.beats) = (Some(sent), VecDeque::new());
        });
        self.shared.hear(first);
    }

    /// The session was lost; whether that is the end of this process's part in a job of fixed membership.
    fn part(&self, how: &str) -> bool {
        let address = &self.caller.address;
        tracing::debug!("lost the rendezvous '{address}': {how}");
        self.shared.change(|news| {
            news.absent = Some(Instant::now());
            if news.is_strict() && news.is_in() {
                let place = place(&news.progress.activity);
                let lost = || End::Lost(format!("rank 0 (the rendezvous at {address}) was lost at {place}: {how}"));
                news.end.get_or_insert_with(lost);
            }
        });
        self.shared.requests.give_up();
        self.shared.news().is_strict()
    }

    fn note(&self, obstacle: Obstacle, has_warned: &mut bool) {
        let (why, is_unproven) = match obstacle {
            Obstacle::Passing(why) => (why, false),
            Obstacle::Unproven(why) => (why, true),
            Obstacle::Elsewhere(error) | Obstacle::Final(error) => (error.to_string(), false),
        };
        // Said at once, though it is tried again: the secret may be wrong.
        if is_unproven && !std::mem::replace(has_warned, true) {
            tracing::warn!("{why}; trying again for at most {}", span(self.shared.patience));
        }
        self.shared.change(|news| (news.obstacle, news.is_introduced) = ((why, is_unproven), false));
    }

    fn end(&self, error: Error) {
        self.shared.end(match error {
            Error::Usage(lines) => End::Refused(lines),
            other => End::Lost(other.to_string()),
        });
    }
}
