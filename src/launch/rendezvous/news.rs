//! What a participant knows of its job, and what follows from it.
//!
//! The session's thread brings bulletins; callers' threads wait for what concerns them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bulletin::{Bulletin, Newcomer, Phase, Progress};
use super::connection::Duty;
use super::requests::Requests;
use super::wire::{FromMember, FromService};
use crate::error::{Error, Result};

/// How long a thread that waits for news sleeps at most before it looks at the clock.
const GLANCE: Duration = Duration::from_millis(100);

/// What the callers' threads and the session's thread share.
pub(super) struct Shared {
    pub requests: Requests,
    news: Mutex<News>,
    changed: Condvar,
    /// The time after which an unanswered heartbeat means nothing to the service any more.
    pub lease: Duration,
    /// How long the service may be away.
    pub patience: Duration,
}

type Act = Box<dyn FnOnce() + Send>;

pub(super) struct News {
    /// What this process says when it comes to the service.
    pub me: Newcomer,
    pub progress: Progress,
    /// The latest bulletin of this session.
    pub bulletin: Option<Bulletin>,
    /// Whether the service knows of this process by now.
    pub is_known: bool,
    /// When the unanswered heartbeats were sent.
    pub beats: VecDeque<Instant>,
    /// When the last heartbeat was sent that the service answered.
    pub confirmed: Option<Instant>,
    /// Since when there is no session.
    pub absent: Option<Instant>,
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
    pub fn error(&self) -> Error {
        match self {
            Self::Left => Error::PeerLost("this process has left the job".into()),
            Self::Refused(lines) => Error::Usage(lines.clone()),
            Self::Lost(why) => Error::PeerLost(why.clone()),
        }
    }
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
}

impl News {
    /// What to do after the generation that was left.
    pub fn call(&self, left: u64, is_kept: bool) -> Option<Call> {
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

    /// Whether this process wants to leave, and the service knows.
    fn leaves(&self) -> bool {
        self.me.draining && self.is_known
    }

    pub fn computes_in(&self, bulletin: &Bulletin) -> bool {
        self.me.computing.as_ref().is_some_and(|assembly| assembly.generation == bulletin.generation)
    }

    /// Why the generation is over in which this process computes.
    pub fn over(&self) -> Option<String> {
        if let Some(end) = &self.end {
            return Some(end.error().to_string());
        }
        let bulletin = self.bulletin.as_ref()?;
        let here = bulletin.members.iter().any(|entry| entry.id == self.me.id);
        let goes_on = self.computes_in(bulletin) && matches!(bulletin.phase, Phase::Running | Phase::Ending) && here;
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
    pub fn new(me: Newcomer, lease: Duration, patience: Duration) -> Self {
        let news = News {
            me,
            progress: Progress::default(),
            bulletin: None,
            is_known: false,
            beats: VecDeque::new(),
            confirmed: None,
            absent: Some(Instant::now()),
            end: None,
            when_over: None,
        };
        Self { requests: Requests::default(), news: Mutex::new(news), changed: Condvar::new(), lease, patience }
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
            if let Some(end) = &news.end {
                return Err(end.error());
            }
            news = self.changed.wait_timeout(news, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn change(&self, change: impl FnOnce(&mut News)) {
        let mut news = self.news();
        change(&mut news);
        news.settle(&self.requests);
        drop(news);
        self.changed.notify_all();
    }
}

impl Duty for Shared {
    fn hear(&self, message: FromService) {
        let Some(message) = self.requests.hear(message) else { return };
        self.change(|news| match message {
            FromService::Alive(_) => news.confirmed = news.beats.pop_front().or(news.confirmed),
            FromService::Verdict(verdict) => drop(news.end.get_or_insert(End::Lost(verdict))),
            FromService::Bulletin(bulletin) => {
                let bulletin = Bulletin::from(bulletin);
                let own = bulletin.members.iter().find(|entry| entry.id == news.me.id);
                news.is_known |= own.is_some();
                // Somebody may have asked this process to leave.
                news.me.draining |= own.is_some_and(|entry| entry.draining);
                news.me.heard = news.me.heard.max(bulletin.generation);
                news.bulletin = Some(bulletin);
            }
            _ => {}
        });
    }

    fn beat(&self) -> FromMember {
        let mut news = self.news();
        news.beats.push_back(Instant::now());
        FromMember::Beat(news.progress.clone().into())
    }

    fn is_over(&self) -> bool {
        self.news().end.is_some()
    }

    fn is_unknown(&self) -> bool {
        let news = self.news();
        let here = |bulletin: &Bulletin| bulletin.members.iter().any(|entry| entry.id == news.me.id);
        news.is_known && !news.me.draining && news.bulletin.as_ref().is_some_and(|bulletin| !here(bulletin))
    }
}
