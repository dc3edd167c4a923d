//! The state that all sessions of the service share: messages of members go to the roster, its latest announcement goes
//! to all sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::Terms;
use super::election::{Vote, Voter, lease};
use super::membership::{Action, Event, MembershipView, Phase, Rules, SessionId};
use super::refusal::Refusal;
use super::rejections::RejectionLog;
use super::roster::Roster;
use super::secret::random_bytes;
use super::store::Store;
use super::wire::{FromMember, FromService, Purpose, decode};

/// A process that proved the secret and was not refused.
pub(super) enum Admitted {
    Member(SessionId),
    Query(FromService),
}

pub(super) struct ServiceState {
    pub terms: Terms,
    pub store: Arc<Store>,
    pub rejections: Arc<RejectionLog>,
    /// The latest view, or the verdict; each session sends it to its member.
    pub latest: watch::Sender<FromService>,
    /// Turns true when the service is about to end.
    pub closing: watch::Sender<bool>,
    pub replaceable: AtomicBool,
    policy: Mutex<Policy>,
}

struct Policy {
    /// `None` until the first member of an elastic job brings the rules.
    roster: Option<Box<Roster>>,
    sessions: SessionId,
    /// If the rendezvous has several addresses.
    voter: Option<Voter>,
    /// Since when this process leads, and the sessions before that.
    leads_since: Option<Instant>,
    past_sessions: SessionId,
    /// What leaders said: their latest generation, and why the run is over, if it is.
    generation: u64,
    over: Option<Refusal>,
}

impl Policy {
    /// Until when this process leads; `None` if it does not.
    fn leads_until(&self, now: Instant) -> Option<Option<Instant>> {
        self.voter.as_ref().map_or(Some(None), |voter| voter.leads(now).map(|(_, until)| Some(until)))
    }

    fn generation(&self) -> u64 {
        self.roster.as_ref().map_or(0, |roster| roster.placement.generation)
    }

    fn ending(&self) -> Option<Refusal> {
        self.roster.as_ref().and_then(|roster| roster.ended.clone()).or_else(|| self.over.clone())
    }

    /// Answers the claim of a candidate that asks for the vote for a `lease`.
    fn vote(&mut self, candidate: u64, lease: Duration) -> Result<Vote, Refusal> {
        let Some(voter) = self.voter.as_mut().filter(|voter| voter.lease == lease) else {
            return Err(Refusal::permanent("it has a different --lost-after; give every process the same"));
        };
        Ok(voter.vote(candidate, Instant::now()))
    }
}

impl ServiceState {
    pub(crate) fn new(terms: Terms) -> Self {
        let strict = || Box::new(Roster::new(Rules::strict(&terms), Instant::now()));
        let voter = || {
            let candidate = u64::from_le_bytes(random_bytes());
            Voter::new(candidate, terms.addresses.len(), lease(terms.timeout), Instant::now())
        };
        let (roster, voter) = ((terms.size > 0).then(strict), (!terms.addresses.is_empty()).then(voter));
        let policy =
            Policy { roster, voter, sessions: 0, leads_since: None, past_sessions: 0, generation: 0, over: None };
        let policy = Mutex::new(policy);
        let (latest, closing) = (watch::Sender::new(FromService::Nobody), watch::Sender::new(false));
        let (store, rejections, replaceable) = Default::default();
        Self { terms, store, rejections, latest, closing, replaceable, policy }
    }

    pub(crate) fn admit(&self, introduction: &[u8]) -> Result<Admitted, Refusal> {
        let purpose = decode(introduction).map_err(|_| {
            Refusal::permanent("this process' introduction cannot be read; start it from the same build")
        })?;
        let mut policy = self.policy();
        let is_led = policy.leads_until(Instant::now()).is_some();
        match purpose {
            Purpose::Claim { candidate, lease, generation, over } => {
                let vote = policy.vote(candidate, lease)?;
                policy.generation = policy.generation.max(generation);
                policy.over = over.or(policy.over.take());
                return Ok(Admitted::Query(FromService::Vote(vote)));
            }
            Purpose::Join(_) | Purpose::Look | Purpose::Drain(_) if !is_led => {
                return Ok(Admitted::Query(FromService::Elsewhere));
            }
            Purpose::Join(process_info) => {
                policy.sessions += 1;
                let session = policy.sessions;
                if policy.roster.is_none() {
                    let rules = Rules::read(&process_info.configuration)?;
                    let roster = Roster::new(rules, Instant::now());
                    policy.roster = Some(Box::new(match policy.leads_since {
                        Some(since) => roster.elected(since, policy.generation),
                        None => roster,
                    }));
                }
                match self.tell(&mut policy, Event::Joined(session, process_info)) {
                    Ok(()) => return Ok(Admitted::Member(session)),
                    // A process that comes after the end of the run gets the last view.
                    Err(refusal) if policy.roster.as_ref().is_some_and(|it| it.is_complete_for(&refusal)) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            Purpose::Replace if self.replaceable.load(Ordering::Relaxed) => drop(self.closing.send_replace(true)),
            Purpose::Replace => {
                return Err(Refusal::permanent(
                    "no trainer holds it, so it cannot be handed over; end its holder, or give another --bind",
                ));
            }
            Purpose::Drain(rank) => self.tell(&mut policy, Event::DrainRank(rank))?,
            Purpose::Look => {}
        }
        let view = policy.roster.as_ref().map(|roster| FromService::View(roster.view()));
        Ok(Admitted::Query(view.unwrap_or(FromService::Nobody)))
    }

    /// Hands a message of a member, other than a request to the store, to the roster.
    pub(crate) fn handle_message(&self, session: SessionId, message: FromMember) {
        message.events(session).into_iter().for_each(|event| self.notify(event));
    }

    /// Whether `session` is the current one of a member.
    pub(crate) fn is_member(&self, session: SessionId) -> bool {
        self.policy().roster.as_ref().is_none_or(|roster| roster.members.iter().any(|member| member.session == session))
    }

    pub(crate) fn tick(&self) {
        self.rejections.log_due(false);
        self.notify(Event::Tick);
    }

    /// Whether a closing service must keep its sessions: a job of fixed membership may yet finish.
    pub(crate) fn is_busy(&self) -> bool {
        let runs = |view: &MembershipView| self.terms.size > 0 && view.phase == Phase::Running;
        matches!(&*self.latest.borrow(), FromService::View(view) if runs(view))
    }

    /// The refusal for processes that come after the end of the job; transient if the run is not complete.
    pub(crate) fn ending(&self) -> Option<Refusal> {
        self.policy().ending()
    }

    /// How long what is said in `session` holds; `None` once this process leads no more.
    pub(crate) fn validity(&self, session: SessionId) -> Option<Duration> {
        let (policy, now) = (self.policy(), Instant::now());
        let until = policy.leads_until(now).filter(|_| session > policy.past_sessions)?;
        Some(until.map_or(Duration::MAX, |until| until - now))
    }

    /// The addresses to claim now, each with the claim and its time.
    pub(crate) fn claims(&self) -> Vec<(usize, Purpose, Instant)> {
        let (mut policy, now) = (self.policy(), Instant::now());
        let (generation, over) = (policy.generation(), policy.ending());
        let Some(voter) = &mut policy.voter else { return Vec::new() };
        let claim = Purpose::Claim { candidate: voter.candidate, lease: voter.lease, generation, over };
        voter.due(now).into_iter().map(|address| (address, claim.clone(), now)).collect()
    }

    /// Takes the answer to the claim of `address` that was sent at `sent`; `None` if there was none.
    pub(crate) fn voted(&self, address: usize, sent: Instant, vote: Option<Vote>) {
        if let Some(voter) = &mut self.policy().voter {
            voter.answered(address, sent, vote, Instant::now());
        }
    }

    /// The current view; `None` if there was never a member.
    pub(crate) fn view(&self) -> Option<MembershipView> {
        self.policy().roster.as_ref().map(|roster| roster.view())
    }

    // Announcements are published under the lock, to keep their order.
    fn policy(&self) -> MutexGuard<'_, Policy> {
        let mut policy = self.policy.lock();
        let since = policy.voter.as_ref().and_then(|voter| voter.leads(Instant::now())).map(|(since, _)| since);
        if policy.leads_since != since {
            // What a leader knows of its run ends with its lease; the next one learns it from the members.
            (policy.leads_since, policy.roster, policy.past_sessions) = (since, None, policy.sessions);
            self.store.keep(&[]);
            self.latest.send_replace(FromService::Nobody);
        }
        policy
    }

    /// Tells the roster about an event that cannot be refused.
    pub(crate) fn notify(&self, event: Event) {
        let _ = self.tell(&mut self.policy(), event);
    }

    fn tell(&self, policy: &mut Policy, event: Event) -> Result<(), Refusal> {
        let Some(roster) = &mut policy.roster else { return Ok(()) };
        let mut answer = Ok(());
        for action in roster.handle(event, Instant::now()) {
            match action {
                Action::Refuse(refusal) => answer = Err(refusal),
                Action::Welcome => {}
                Action::Announce(view) => {
                    let pending = view.pending.iter().map(|pending| pending.generation);
                    let current = pending.chain([view.generation]).map(|generation| format!("{generation}/"));
                    self.store.keep(&current.collect::<Vec<_>>());
                    self.latest.send_replace(FromService::View(view));
                }
                Action::Decide(verdict) => {
                    // Not a warning, since every process prints it as its error.
                    tracing::info!("{verdict}");
                    self.latest.send_replace(FromService::Verdict(verdict));
                }
            }
        }
        answer
    }
}
