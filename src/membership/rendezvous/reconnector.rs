//! Keeps a client's session with the service, and opens a new one after a loss.
//!
//! A job of fixed membership ends with its service: without it there is no verdict, so each member ends on its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_system::Error;
use tokio::sync::mpsc;

use super::HANDSHAKE;
use super::connection::{DialError, Dialer, NO_LEADER, Session};
use super::eligibility::short_name;
use super::member_state::{End, MemberState};
use super::sentence::{place, span};
use super::shared_state::SharedState;
use super::wire::{FromMember, FromService, Purpose, encode};

/// The time between two attempts to reach the service.
const RETRY: Duration = Duration::from_millis(100);
/// The first time limit of a handshake with one of several addresses; it doubles whenever none of them has led.
const FIRST_HANDSHAKE: Duration = Duration::from_millis(500);

/// Called before each attempt to reach the service, to start the service if it belongs on this machine and is missing.
pub type BeforeAttempt = Box<dyn FnMut() + Send + Sync>;

pub(super) struct Reconnector {
    pub dialers: Vec<Dialer>,
    /// Counts the attempts: each goes to the next address.
    pub attempts: usize,
    pub last_success: usize,
    pub shared: Arc<SharedState>,
    pub before_attempt: BeforeAttempt,
}

impl Reconnector {
    /// Opens sessions until this process is out of the job.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<FromMember>) {
        let (mut has_met, mut has_warned) = (false, false);
        while !self.shared.is_over() {
            (self.before_attempt)();
            let failure = match self.attempt().await {
                Ok((mut session, first)) => {
                    (has_warned, self.last_success) = (false, self.attempts);
                    self.begin(first);
                    let how = session.work(self.shared.as_ref(), &mut commands, &self.dialer().terms).await;
                    let Some(how) = how else { break };
                    has_met = !self.note_loss(&how);
                    DialError::Transient(how)
                }
                // Another job uses the address for now; the service of this one may return.
                Err(DialError::OtherJob(error)) if has_met => DialError::Transient(error.to_string()),
                Err(DialError::Final(error) | DialError::OtherJob(error)) => {
                    self.end(error);
                    break;
                }
                Err(other) => other,
            };
            self.note_failure(failure, &mut has_warned);
            self.attempts += 1;
            tokio::time::sleep(RETRY).await;
        }
        self.shared.requests.close();
    }

    fn dialer(&self) -> &Dialer {
        &self.dialers[self.attempts % self.dialers.len()]
    }

    /// The time limit of the handshake of this attempt.
    fn handshake(&self) -> Duration {
        let rounds = self.attempts.saturating_sub(self.last_success) / self.dialers.len();
        let limit = FIRST_HANDSHAKE * (1 << rounds.min(4));
        if self.dialers.len() > 1 { limit.min(HANDSHAKE) } else { HANDSHAKE }
    }

    /// Opens a session; returns its first message too.
    async fn attempt(&self) -> Result<(Session, FromService), DialError> {
        let process_info = self.shared.state.lock().own.clone();
        let who = short_name(&process_info);
        let mut session = self.dialer().dial(encode(&Purpose::Join(process_info)), &who, self.handshake()).await?;
        self.shared.state.lock().is_introduced = true;
        let limit = self.dialer().terms.timeout;
        let silent = |_| DialError::Transient(format!("no answer to its introduction for {}", span(limit)));
        let first = tokio::time::timeout(limit, session.next()).await.map_err(silent)?;
        match first.map_err(DialError::Transient)? {
            FromService::Refusal(refusal) => Err(self.dialer().refused(&who, refusal)),
            FromService::Elsewhere => Err(DialError::Transient(NO_LEADER.into())),
            first => Ok((session, first)),
        }
    }

    fn begin(&self, first: FromService) {
        self.shared.change(MemberState::begin_session);
        self.shared.handle_message(first);
    }

    /// Notes that the session was lost; returns whether membership is fixed.
    fn note_loss(&self, how: &str) -> bool {
        let address = &self.dialer().address;
        tracing::debug!("lost the rendezvous '{address}': {how}");
        self.shared.change(|state| {
            state.disconnected_since = Some(Instant::now());
            if state.is_strict() && state.is_admitted() {
                let place = place(&state.progress.activity);
                let lost = || End::Lost(format!("rank 0 (the rendezvous at {address}) was lost at {place}: {how}"));
                state.end.get_or_insert_with(lost);
            }
        });
        self.shared.requests.cancel();
        self.shared.state.lock().is_strict()
    }

    fn note_failure(&self, failure: DialError, has_warned: &mut bool) {
        let (why, is_unproven) = match failure {
            DialError::Transient(why) | DialError::Absent(why) => (why, false),
            DialError::Unproven(why) => (why, true),
            DialError::OtherJob(error) | DialError::Final(error) => (error.to_string(), false),
        };
        // A warning before the last attempt, since the secret may be wrong.
        if is_unproven && !std::mem::replace(has_warned, true) {
            tracing::warn!("{why}; trying again for at most {}", span(self.shared.absence_limit));
        }
        self.shared.change(|state| (state.failure, state.is_introduced) = ((why, is_unproven), false));
    }

    fn end(&self, error: Error) {
        self.shared.end(match error {
            Error::Usage(lines) => End::Refused(lines),
            other => End::Lost(other.to_string()),
        });
    }
}
