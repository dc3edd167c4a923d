//! What a client knows of its job, and what follows from it.
//!
//! The session's thread brings bulletins; callers' threads wait for what concerns them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bulletin::{Assembly, Bulletin, Newcomer, Phase, Progress};
use super::connection::Duty;
use super::eligibility::called;
use super::requests::Requests;
use super::sentence::span;
use super::wire::{FromMember, FromService};
use super::{LATE_BEATS, Terms};
use crate::error::{Error, Result};

/// How long a thread that waits for news sleeps at most before it looks at the clock.
pub(super) const GLANCE: Duration = Duration::from_millis(100);
/// A process that wants to leave waits so long for a service that is away or silent, then leaves without it; longer
/// where heartbeats are rare.
const ALONE: Duration = Duration::from_secs(3);

/// What the callers' threads and the session's thread share.
pub(super) struct Shared {
    pub requests: Requests,
    news: Mutex<News>,
    changed: Condvar,
    /// The time after which an unanswered heartbeat means nothing to the service any more.
    pub lease: Duration,
    pub address: String,
    /// How long the service may be away, or the others of a fixed job.
    pub patience: Duration,
}

type Act = Box<dyn FnOnce() + Send>;

pub(super) struct News {
    /// What this process says when it comes to the service.
    pub me: Newcomer,
    pub progress: Progress,
    /// Counts the sessions.
    pub session: u64,
    /// The latest bulletin of this session.
    pub bulletin: Option<Bulletin>,
    /// Whether the service knows of this process by now.
    pub is_known: bool,
    /// Whether the service said that the run is complete.
    pub is_complete: bool,
    /// When the unanswered heartbeats were sent.
    pub beats: VecDeque<Instant>,
    /// When the last heartbeat was sent that the service answered.
    pub confirmed: Option<Instant>,
    /// Since when there is no session.
    pub absent: Option<Instant>,
    /// Whether the service has been told who this process is, and has yet to answer: over a slow link that takes its time.
    pub is_introduced: bool,
    /// Why there is none, and whether that may be a wrong secret.
    pub obstacle: (String, bool),
    /// When this process came.
    came: Instant,
    /// When the service said anything last.
    pub heard: Instant,
    /// When this process was asked to leave.
    pub asked: Option<Instant>,
    /// How long it waits for the service then.
    alone_after: Duration,
    /// Why this process is out of the job.
    pub end: Option<End>,
    /// What is to be done when the generation is over in which this process computes.
    pub when_over: Option<Act>,
}

/// Why a process is out of its job.
#[derive(Debug, Clone)]
pub(super) enum End {
    Left,
    Refused(Vec<String>),
    Lost(String),
}

impl End {
    fn refused(line: String) -> Self {
        Self::Refused(vec![line])
    }

    pub fn error(&self) -> Error {
        match self {
            Self::Left => Error::PeerLost("this process has left the job".into()),
            Self::Refused(lines) => Error::Usage(lines.clone()),
            Self::Lost(why) => Error::PeerLost(why.clone()),
        }
    }
}

/// An attempt of this process to connect for a generation to come. What it connected with, it gives up with its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub(super) session: u64,
    /// The generation to come.
    pub generation: u64,
}

/// What the service asks of a process that does not compute.
pub(super) enum Call {
    /// To take part in this generation.
    Enter(Bulletin),
    /// To save what it holds, as nobody computes for now.
    Keep,
    /// Nothing more: this generation was over before it began here.
    Missed(u64),
    /// To leave, as it wanted.
    Go,
    /// Nothing more: the run is complete.
    Finish,
}

impl News {
    /// Whether membership is fixed.
    pub fn is_strict(&self) -> bool {
        self.me.rank.is_some()
    }

    /// Whether this process need not wait any longer to be taken in: a fixed job begins with all of its members.
    pub fn is_in(&self) -> bool {
        let has_begun = self.bulletin.as_ref().is_some_and(|bulletin| bulletin.phase == Phase::Running);
        if self.is_strict() { has_begun } else { self.is_known || self.is_complete }
    }

    /// Ends the wait for the service, or for the other members of a fixed job, if it was long enough.
    fn lose_patience(&mut self, Shared { address, patience, .. }: &Shared) {
        let since = if self.is_strict() {
            Some(self.came).filter(|_| !self.is_in())
        } else {
            self.absent.filter(|_| !self.is_introduced)
        };
        if self.end.is_some() || since.is_none_or(|since| since.elapsed() < *patience) {
            return;
        }
        let (span, (why, is_unproven)) = (span(*patience), self.obstacle.clone());
        // The others are what is waited for while there is a session.
        let missing = self.bulletin.as_ref().filter(|_| self.absent.is_none());
        let (why, is_unproven) = missing.map_or((why, is_unproven), |it| (format!("{} did not come", it.why), false));
        self.end = Some(match self.me.rank {
            Some(rank) if is_unproven => End::refused(format!("rank {rank} did not meet its job within {span}: {why}")),
            None if is_unproven && self.session == 0 => {
                End::refused(format!("this process did not meet its job within {span}: {why}"))
            }
            Some(rank) => End::Lost(format!(
                "rank {rank} did not meet everybody at the rendezvous '{address}' within {span}: {why}; start all \
                 processes, or wait longer with --dist-timeout"
            )),
            None => End::Lost(format!(
                "the rendezvous '{address}' could not be reached for {span}: {why}; start it again, or wait longer \
                 with --elastic-timeout"
            )),
        });
    }

    /// What to do after the generation that was left.
    pub fn call(&self, left: u64, is_kept: bool) -> Option<Call> {
        if self.is_complete {
            return Some(Call::Finish);
        }
        if self.is_alone() {
            return Some(if is_kept { Call::Go } else { Call::Keep });
        }
        let bulletin = self.bulletin.as_ref()?;
        let first = bulletin.members.first().is_none_or(|entry| entry.id == self.me.id);
        if bulletin.phase == Phase::Waiting && self.is_known && first && !is_kept {
            return Some(Call::Keep);
        }
        let own = bulletin.members.iter().find(|entry| entry.id == self.me.id);
        let has_part = own.is_some_and(|entry| !entry.replicas.is_empty());
        let is_new = bulletin.generation > left;
        match bulletin.phase {
            // Others have what this process holds, or there are none.
            Phase::Running | Phase::Ending if self.leaves() && is_new && !has_part => Some(Call::Go),
            Phase::Waiting if self.leaves() => Some(Call::Go),
            Phase::Running | Phase::Ending if is_new && has_part => Some(Call::Enter(bulletin.clone())),
            Phase::Over | Phase::Waiting if is_new && has_part => Some(Call::Missed(bulletin.generation)),
            _ => None,
        }
    }

    /// This process is to leave.
    pub fn ask(&mut self) {
        self.me.draining = true;
        self.asked.get_or_insert_with(Instant::now);
    }

    /// Whether this process wants to leave and there is no service to let it go.
    pub fn is_alone(&self) -> bool {
        let Some(asked) = self.asked else { return false };
        let silent = asked.max(self.heard);
        self.absent.map_or(silent, |absent| absent.min(silent)).elapsed() >= self.alone_after
    }

    /// Whether this process wants to leave, and the service knows.
    fn leaves(&self) -> bool {
        self.me.draining && self.is_known
    }

    /// What a process without a part in a generation waits for, for people.
    pub fn awaited(&self) -> String {
        let Some(bulletin) = self.bulletin.as_ref().filter(|_| self.absent.is_none()) else {
            return "the rendezvous does not answer".into();
        };
        let generation = bulletin.generation;
        match bulletin.phase {
            // The shortage stands last.
            Phase::Waiting => bulletin.why.rsplit("; ").next().unwrap_or_default().into(),
            Phase::Ending => format!("the processes of generation {generation} finish their step"),
            Phase::Over => format!("the processes of generation {generation} get ready for the next one"),
            Phase::Running if self.prospect().is_some() => "this process connects with the others".into(),
            Phase::Running | Phase::Complete => "in reserve, as there is no replica for this process".into(),
        }
    }

    /// The generation to come, if this process has a part in it, and the attempt to connect for it.
    pub fn prospect(&self) -> Option<(Attempt, &Assembly)> {
        let prospect = self.bulletin.as_ref()?.prospect.as_ref()?;
        prospect.rank(self.me.id)?;
        Some((Attempt { session: self.session, generation: prospect.generation }, prospect))
    }

    pub fn computes_in(&self, bulletin: &Bulletin) -> bool {
        self.me.computing.as_ref().is_some_and(|assembly| assembly.generation == bulletin.generation)
    }

    /// Why the generation is over in which this process computes, or all of the run.
    pub fn over(&self) -> Option<String> {
        if let Some(end) = &self.end {
            return Some(end.error().to_string());
        }
        if self.is_alone() {
            return Some("this process leaves without the rendezvous, which is away".into());
        }
        self.me.computing.as_ref()?;
        let bulletin = self.bulletin.as_ref()?;
        let here = bulletin.members.iter().any(|entry| entry.id == self.me.id);
        // Who hears that the run is complete is about to finish it, too.
        let is_alive = matches!(bulletin.phase, Phase::Running | Phase::Ending | Phase::Complete);
        let goes_on = self.computes_in(bulletin) && is_alive && here;
        (!goes_on).then(|| bulletin.why.clone())
    }

    /// Acts on the end of the generation, if it has come.
    pub fn settle(&mut self, requests: &Requests) {
        if self.over().is_none() {
            return;
        }
        requests.give_up();
        if let Some(act) = self.when_over.take() {
            // The act may wait for other threads, which may ask for news.
            let thread = std::thread::Builder::new().name("generation".into());
            if let Err(error) = thread.spawn(act) {
                tracing::warn!("cannot start a thread to end the generation: {error}");
            }
        }
    }
}

impl Shared {
    pub fn new(me: Newcomer, terms: &Terms, address: &str, patience: Duration) -> Self {
        let lease = terms.timeout * 2 / 3;
        let news = News {
            me,
            progress: Progress::default(),
            session: 0,
            bulletin: None,
            is_known: false,
            is_complete: false,
            beats: VecDeque::new(),
            confirmed: None,
            absent: Some(Instant::now()),
            is_introduced: false,
            obstacle: ("no answer".into(), false),
            came: Instant::now(),
            heard: Instant::now(),
            asked: None,
            alone_after: ALONE.max(terms.beat.saturating_mul(LATE_BEATS)),
            end: None,
            when_over: None,
        };
        let (requests, news, changed) = (Requests::default(), Mutex::new(news), Condvar::new());
        Self { requests, news, changed, lease, address: address.into(), patience }
    }

    /// No code of others runs under this lock, so what a panic elsewhere leaves behind is whole.
    pub fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `find` finds something, this process is out of the job, or the service is away for too long.
    pub fn wait<T>(&self, find: impl Fn(&News) -> Option<T>) -> Result<T> {
        let mut news = self.news();
        loop {
            if let Some(found) = find(&news) {
                return Ok(found);
            }
            news.lose_patience(self);
            if let Some(end) = &news.end {
                return Err(end.error());
            }
            news = self.changed.wait_timeout(news, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// This process is out of the job for this reason, unless it was before.
    pub fn end(&self, end: End) {
        self.change(|news| {
            news.end.get_or_insert(end);
        });
    }

    pub fn change(&self, change: impl FnOnce(&mut News)) {
        let mut news = self.news();
        change(&mut news);
        news.lose_patience(self);
        news.settle(&self.requests);
        drop(news);
        self.changed.notify_all();
    }
}

impl Duty for Shared {
    fn hear(&self, message: FromService) {
        self.news().heard = Instant::now();
        let Some(message) = self.requests.hear(message) else { return };
        self.change(|news| match message {
            FromService::Alive => news.confirmed = news.beats.pop_front().or(news.confirmed),
            FromService::Verdict(verdict) => drop(news.end.get_or_insert(End::Lost(verdict))),
            FromService::Bulletin(bulletin) => {
                let own = bulletin.members.iter().find(|entry| entry.id == news.me.id);
                news.is_known |= own.is_some();
                // Somebody may have asked this process to leave.
                if own.is_some_and(|entry| entry.draining) {
                    news.ask();
                }
                news.is_complete |= bulletin.phase == Phase::Complete;
                news.me.heard = news.me.heard.max(bulletin.generation);
                if bulletin.phase == Phase::Running && own.is_some_and(|entry| !entry.replicas.is_empty()) {
                    let parts = bulletin.members.iter().filter(|entry| !entry.replicas.is_empty());
                    news.me.peers = parts.map(|entry| (entry.id, called(&entry.host, entry.process))).collect();
                }
                news.bulletin = Some(bulletin);
            }
            _ => {}
        });
    }

    fn beat(&self) -> FromMember {
        let mut news = self.news();
        news.beats.push_back(Instant::now());
        FromMember::Beat(news.progress.clone())
    }

    fn is_over(&self) -> bool {
        let news = self.news();
        news.end.is_some() || news.is_complete
    }

    fn is_unknown(&self) -> bool {
        let news = self.news();
        let here = |bulletin: &Bulletin| bulletin.members.iter().any(|entry| entry.id == news.me.id);
        news.is_known && !news.me.draining && news.bulletin.as_ref().is_some_and(|bulletin| !here(bulletin))
    }
}
