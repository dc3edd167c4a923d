//! What all sessions of the service share, and how the roster's actions reach them.
//!
//! A member has a seat, and what it says goes to the roster; the latest that the roster told is passed on to all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::Terms;
use super::bulletin::{Action, Bulletin, Event, Phase, Rules, Seat};
use super::knocks::Knocks;
use super::refusal::Refusal;
use super::roster::Roster;
use super::store::Store;
use super::wire::{FromMember, FromService, Purpose, decode};

/// What becomes of a process that proved the secret.
pub(super) enum Admitted {
    /// It is a member; the seat tells it from all others.
    Member(Seat),
    /// It gets this answer and goes.
    Visitor(FromService),
}

pub(super) struct State {
    pub terms: Terms,
    pub store: Arc<Store>,
    pub knocks: Arc<Knocks>,
    /// What the job has come to; each session passes the latest on to its member.
    pub news: watch::Sender<FromService>,
    /// Turns true when the service is about to end.
    pub closing: watch::Sender<bool>,
    /// Whether somebody else may hold the rendezvous in its place.
    pub replaceable: AtomicBool,
    policy: Mutex<Policy>,
}

struct Policy {
    /// Absent until the first member of an elastic job brings the rules.
    roster: Option<Box<Roster>>,
    /// Counts the seats that were given.
    seats: Seat,
}

impl State {
    pub fn new(terms: Terms) -> Self {
        let strict = || Box::new(Roster::new(Rules::strict(&terms), Instant::now()));
        let policy = Mutex::new(Policy { roster: (terms.size > 0).then(strict), seats: 0 });
        let (news, closing) = (watch::Sender::new(FromService::Nobody), watch::Sender::new(false));
        let (store, knocks, replaceable) = Default::default();
        Self { terms, store, knocks, news, closing, replaceable, policy }
    }

    /// Takes in a process by what it says of itself.
    pub fn admit(&self, introduction: &[u8]) -> Result<Admitted, Refusal> {
        let purpose = decode(introduction)
            .map_err(|_| Refusal::lasting("this process' introduction cannot be read; start it from the same build"))?;
        let mut policy = self.policy();
        match purpose {
            Purpose::Join(newcomer) => {
                policy.seats += 1;
                let seat = policy.seats;
                if policy.roster.is_none() {
                    let rules = Rules::read(&newcomer.configuration)?;
                    policy.roster = Some(Box::new(Roster::new(rules, Instant::now())));
                }
                match self.tell(&mut policy, Event::Came(seat, newcomer)) {
                    Ok(()) => return Ok(Admitted::Member(seat)),
                    // A process is refused for no other reason than that the run is complete.
                    Err(refusal) if policy.roster.as_ref().is_some_and(|it| it.is_complete_for(&refusal)) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            Purpose::Replace if self.replaceable.load(Ordering::Relaxed) => drop(self.closing.send_replace(true)),
            Purpose::Replace => {
                return Err(Refusal::lasting(
                    "no trainer holds it, so it is not handed over; end its holder, or give another --bind",
                ));
            }
            Purpose::Drain(rank) => self.tell(&mut policy, Event::DrainRank(rank))?,
            Purpose::Look => {}
        }
        let bulletin = policy.roster.as_ref().map(|roster| FromService::Bulletin(roster.bulletin()));
        Ok(Admitted::Visitor(bulletin.unwrap_or(FromService::Nobody)))
    }

    /// Passes on what a member says; messages about the store never come here.
    pub fn hear(&self, seat: Seat, message: FromMember) {
        message.events(seat).into_iter().for_each(|event| self.note(event));
    }

    /// A member's session ended without a leave, and how.
    pub fn miss(&self, seat: Seat, how: String) {
        self.note(Event::Closed(seat, how));
    }

    /// Whether `seat` is that of a member.
    pub fn has(&self, seat: Seat) -> bool {
        self.policy().roster.as_ref().is_none_or(|roster| roster.members.iter().any(|member| member.seat == seat))
    }

    /// Time went by.
    pub fn tick(&self) {
        self.knocks.settle(false);
        self.note(Event::Tick);
    }

    /// Whether sessions still have something to do while the service ends: a job of fixed membership may yet finish.
    pub fn at_work(&self) -> bool {
        let runs = |bulletin: &Bulletin| self.terms.size > 0 && bulletin.phase == Phase::Running;
        matches!(&*self.news.borrow(), FromService::Bulletin(bulletin) if runs(bulletin))
    }

    /// How the job has come to its end, if it has; passing if the run is not complete.
    pub fn ending(&self) -> Option<Refusal> {
        self.policy().roster.as_ref()?.ending().cloned()
    }

    /// Who is in the job right now, if anybody ever was.
    pub fn bulletin(&self) -> Option<Bulletin> {
        self.policy().roster.as_ref().map(|roster| roster.bulletin())
    }

    // News are published under the lock, so that they come in the order in which they were decided.
    fn policy(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A refusal is an answer to newcomers only.
    fn note(&self, event: Event) {
        let _ = self.tell(&mut self.policy(), event);
    }

    fn tell(&self, policy: &mut Policy, event: Event) -> Result<(), Refusal> {
        let Some(roster) = &mut policy.roster else { return Ok(()) };
        let mut answer = Ok(());
        for action in roster.handle(event, Instant::now()) {
            match action {
                // Time may have brought news for the members beside it.
                Action::Refuse(refusal) => answer = Err(refusal),
                Action::Welcome => {}
                Action::Announce(bulletin) => {
                    // What earlier generations left is of no use any more.
                    let coming = bulletin.prospect.iter().map(|prospect| prospect.generation);
                    let alive = coming.chain([bulletin.generation]).map(|generation| format!("{generation}/"));
                    self.store.keep(&alive.collect::<Vec<_>>());
                    self.news.send_replace(FromService::Bulletin(bulletin));
                }
                Action::Decide(verdict) => {
                    // Every process prints it as its error.
                    tracing::info!("{verdict}");
                    self.news.send_replace(FromService::Verdict(verdict));
                }
            }
        }
        answer
    }
}
