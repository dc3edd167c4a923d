//! What all sessions of the service share, and how the policy's actions reach them.
//!
//! A job of fixed membership is judged by the [`judge`], an elastic one is led by the
//! [`roster`](super::roster). Sessions do not care which: a member has a seat, and what it says goes to the policy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prost::Message;
use tokio::sync::watch;

use super::bulletin::{Action, Event, Rules, Seat};
use super::elastic_wire::{Purpose, Visit};
use super::judge::{self, Judge};
use super::knocks::Knocks;
use super::roster::Roster;
use super::store::Store;
use super::wire::{FromMember, FromService, Layout, Person, Refusal};
use super::{Introduction, Terms, bulletin};

/// What the job has come to; each session passes the latest on to its member.
#[derive(Debug, Clone)]
pub(super) enum News {
    /// These ranks are missing yet.
    Waiting(String),
    /// Everybody is there.
    Layout(Layout),
    /// Who is there in an elastic job, and what they are to do.
    Bulletin(bulletin::Bulletin),
    /// The job is over.
    Verdict(String),
}

impl From<News> for FromService {
    fn from(news: News) -> Self {
        match news {
            News::Waiting(missing) => Self::Waiting(missing),
            News::Layout(layout) => Self::Layout(layout),
            News::Bulletin(bulletin) => Self::Bulletin(bulletin.into()),
            News::Verdict(verdict) => Self::Verdict(verdict),
        }
    }
}

/// What becomes of a process that proved the secret.
pub(super) enum Admitted {
    /// It is a member; the seat tells it from all others.
    Member(Seat),
    /// It gets this answer and goes.
    Visitor(FromService),
}

enum Policy {
    Fixed(Judge),
    /// The first member brings the rules.
    Elastic(Option<Box<Roster>>),
}

pub(super) struct State {
    pub terms: Terms,
    pub store: Arc<Store>,
    pub knocks: Arc<Knocks>,
    pub news: watch::Sender<News>,
    /// Turns true when the service is about to end.
    pub closing: watch::Sender<bool>,
    /// Whether somebody else may hold the rendezvous in its place.
    pub replaceable: AtomicBool,
    policy: Mutex<(Policy, Seat)>,
}

impl State {
    pub fn new(terms: Terms) -> Self {
        let policy = match terms.size {
            0 => Policy::Elastic(None),
            _ => Policy::Fixed(Judge::new(&terms, Instant::now())),
        };
        let (news, closing) = (watch::Sender::new(News::Waiting(String::new())), watch::Sender::new(false));
        let (replaceable, policy) = (AtomicBool::new(false), Mutex::new((policy, 0)));
        Self { terms, store: Arc::default(), knocks: Arc::default(), news, closing, replaceable, policy }
    }

    /// Takes in a process by what it says of itself.
    pub fn admit(&self, introduction: &[u8]) -> Result<Admitted, Refusal> {
        let mut policy = self.policy();
        let (policy, seats) = &mut *policy;
        match policy {
            Policy::Fixed(judge) => {
                let who = Introduction::from(Person::decode(introduction).map_err(unreadable)?);
                let seat = who.rank as Seat;
                self.judged(judge.handle(judge::Event::Came(who), Instant::now()))?;
                Ok(Admitted::Member(seat))
            }
            Policy::Elastic(roster) => {
                let visit = Visit::decode(introduction).map_err(unreadable)?;
                match visit.purpose {
                    Some(Purpose::Join(newcomer)) => {
                        *seats += 1;
                        let newcomer = bulletin::Newcomer::from(newcomer);
                        if roster.is_none() {
                            let rules = Rules::read(&newcomer.configuration)?;
                            *roster = Some(Box::new(Roster::new(rules, Instant::now())));
                        }
                        match self.led(roster, Event::Came(*seats, newcomer)) {
                            Ok(()) => Ok(Admitted::Member(*seats)),
                            Err(refusal) if is_over(roster.as_deref(), &refusal) => {
                                Ok(Admitted::Visitor(look(roster.as_deref())))
                            }
                            Err(refusal) => Err(refusal),
                        }
                    }
                    Some(Purpose::Replace(_)) => {
                        if !self.replaceable.load(Ordering::Relaxed) {
                            return Err(Refusal::lasting(
                                "no trainer holds it, so it is not handed over; end its holder, or give another --bind",
                            ));
                        }
                        self.closing.send_replace(true);
                        Ok(Admitted::Visitor(look(roster.as_deref())))
                    }
                    Some(Purpose::Drain(rank)) => {
                        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
                        self.led(roster, Event::DrainRank(rank))?;
                        Ok(Admitted::Visitor(look(roster.as_deref())))
                    }
                    _ => Ok(Admitted::Visitor(look(roster.as_deref()))),
                }
            }
        }
    }

    /// Passes on what a member says; messages about the store never come here.
    pub fn hear(&self, seat: Seat, message: FromMember) {
        // A refusal is an answer to newcomers only.
        let _ = match &mut self.policy().0 {
            Policy::Fixed(judge) => {
                let event = judge::Event::of(seat as usize, message);
                event.map_or(Ok(()), |event| self.judged(judge.handle(event, Instant::now())))
            }
            Policy::Elastic(roster) => event(seat, message).map_or(Ok(()), |event| self.led(roster, event)),
        };
    }

    /// A member's session ended without a leave, and how.
    pub fn miss(&self, seat: Seat, how: String) {
        let _ = match &mut self.policy().0 {
            Policy::Fixed(judge) => {
                let event = judge::Event::Closed(seat as usize, how);
                self.judged(judge.handle(event, Instant::now()))
            }
            Policy::Elastic(roster) => self.led(roster, Event::Closed(seat, how)),
        };
    }

    /// Whether `seat` is that of a member; one of fixed membership keeps its seat.
    pub fn has(&self, seat: Seat) -> bool {
        match &self.policy().0 {
            Policy::Elastic(Some(roster)) => roster.members.iter().any(|member| member.seat == seat),
            _ => true,
        }
    }

    /// Time went by.
    pub fn tick(&self) {
        self.knocks.settle(false);
        let _ = match &mut self.policy().0 {
            Policy::Fixed(judge) => self.judged(judge.handle(judge::Event::Tick, Instant::now())),
            Policy::Elastic(roster) => self.led(roster, Event::Tick),
        };
    }

    /// Whether sessions still have something to do while the service ends: a job of fixed membership may yet finish.
    pub fn at_work(&self) -> bool {
        matches!(*self.news.borrow(), News::Layout(_))
    }

    /// How an elastic job has come to its end, if it has; passing if the run is not complete.
    pub fn ending(&self) -> Option<Refusal> {
        match &self.policy().0 {
            Policy::Elastic(Some(roster)) => roster.ending().cloned(),
            _ => None,
        }
    }

    /// Who is in an elastic job right now, if anybody ever was.
    pub fn bulletin(&self) -> Option<bulletin::Bulletin> {
        match &self.policy().0 {
            Policy::Elastic(roster) => roster.as_ref().map(|roster| roster.bulletin()),
            Policy::Fixed(_) => None,
        }
    }

    // News are published under the lock, so that they come in the order in which they were decided.
    fn policy(&self) -> MutexGuard<'_, (Policy, Seat)> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judged(&self, actions: Vec<judge::Action>) -> Result<(), Refusal> {
        for action in actions {
            match action {
                judge::Action::Refuse(refusal) => return Err(refusal),
                judge::Action::Welcome => {}
                judge::Action::Await(missing) => drop(self.news.send_replace(News::Waiting(missing))),
                judge::Action::Begin(members) => {
                    let bare = |it| Person { configuration: Default::default(), ..Person::from(it) };
                    let layout = Layout { members: members.iter().map(bare).collect() };
                    self.news.send_replace(News::Layout(layout));
                }
                judge::Action::Decide(verdict) => self.decide(verdict),
            }
        }
        Ok(())
    }

    fn led(&self, roster: &mut Option<Box<Roster>>, event: Event) -> Result<(), Refusal> {
        let Some(roster) = roster else { return Ok(()) };
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
                    self.news.send_replace(News::Bulletin(bulletin));
                }
                Action::Decide(verdict) => self.decide(verdict),
            }
        }
        answer
    }

    fn decide(&self, verdict: String) {
        // Every process prints it as its error.
        tracing::info!("{verdict}");
        self.news.send_replace(News::Verdict(verdict));
    }
}

/// What a message of a member means to the roster; the store is not its business.
fn event(seat: Seat, message: FromMember) -> Option<Event> {
    Some(match message {
        FromMember::Beat(activity) => Event::Beat(seat, activity.into()),
        FromMember::Trouble(it) => Event::Trouble(seat, it.generation, it.symptom),
        FromMember::Leave(it) => Event::Left(seat, it.failed),
        FromMember::Ready(it) => Event::Ready(seat, it.into()),
        FromMember::Drain(_) => Event::Drain(seat),
        FromMember::Connected(generation) => Event::Connected(seat, generation),
        FromMember::Hello(_) | FromMember::Proof(_) | FromMember::Set(_) | FromMember::Get(_) => return None,
    })
}

/// Whether a process is refused for no other reason than that the run is complete.
fn is_over(roster: Option<&Roster>, refusal: &Refusal) -> bool {
    roster.is_some_and(|roster| roster.is_complete() && roster.ending() == Some(refusal))
}

fn look(roster: Option<&Roster>) -> FromService {
    match roster {
        Some(roster) => News::Bulletin(roster.bulletin()).into(),
        None => FromService::Waiting(String::new()),
    }
}

fn unreadable(error: prost::DecodeError) -> Refusal {
    Refusal::lasting(format!("this process' introduction cannot be read: {error}"))
}
