//! A participant: one process' place in an elastic job, as the rest of Kiln sees it.
//!
//! All calls block and may come from any thread. A thread of its own keeps the session with the service: it comes again
//! when the connection is lost, and tells the service each time what this process holds and computes, so that the
//! service may be another one. Nobody changes the state of the run without a **lease**: the service must have answered
//! a heartbeat that was sent so recently that it cannot have given this process up since.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc as blocking};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use super::bulletin::{Bulletin, Newcomer, Phase, Progress, Ready, Standing};
use super::connection::{Caller, Duty, Obstacle, Session};
use super::elastic_wire::{Purpose, Visit};
use super::link::RETRY;
use super::requests::Requests;
use super::secret::nonce;
use super::wire::{FromMember, FromService, Leave, Trouble};
use super::{Terms, Verdict, member, sentence};
use crate::error::{Error, Result};

/// How long a leave may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a thread that waits for news sleeps at most before it looks at the clock.
const GLANCE: Duration = Duration::from_millis(100);

/// What is done before each attempt to reach the service: hold it, if nobody does and it belongs on this machine.
pub type BeforeAttempt = Box<dyn FnMut() + Send + Sync>;

/// This process' place in the job. Dropping it without [`leave`](Self::leave) looks to the others like its death.
pub struct Participant {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<FromMember>,
    /// Disconnected when there is no session any more, and none to come.
    ended: Mutex<blocking::Receiver<()>>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Participant({})", self.shared.news().me.id)
    }
}

/// What the callers' threads and the session's thread share.
struct Shared {
    requests: Requests,
    news: Mutex<News>,
    changed: Condvar,
    /// The time after which an unanswered heartbeat means nothing to the service any more.
    lease: Duration,
    /// How long the service may be away.
    patience: Duration,
}

type Act = Box<dyn FnOnce() + Send>;

struct News {
    /// What this process says when it comes to the service.
    me: Newcomer,
    progress: Progress,
    /// The latest bulletin of this session.
    bulletin: Option<Bulletin>,
    /// Whether the service knows of this process by now.
    is_known: bool,
    /// When the unanswered heartbeats were sent.
    beats: VecDeque<Instant>,
    /// When the last heartbeat was sent that the service answered.
    confirmed: Option<Instant>,
    /// Since when there is no session.
    absent: Option<Instant>,
    /// Why this process is out of the job.
    end: Option<End>,
    /// What is to be done when the generation is over in which this process computes.
    when_over: Option<Act>,
}

/// Why a process is out of its job.
#[derive(Debug, Clone)]
enum End {
    Left,
    Refused(Vec<String>),
    Lost(String),
}

impl End {
    fn error(&self) -> Error {
        match self {
            Self::Left => Error::PeerLost("this process has left the job".into()),
            Self::Refused(lines) => Error::Usage(lines.clone()),
            Self::Lost(why) => Error::PeerLost(why.clone()),
        }
    }
}

impl Participant {
    /// Comes to the job at `address` (`host:port`), and comes again whenever the connection is lost.
    ///
    /// Returns when the service has taken this process in. A usage error if it refuses what this process was given,
    /// [`Error::PeerLost`] if it cannot be reached for as long as `patience`.
    pub fn join(
        address: &str,
        terms: &Terms,
        me: Newcomer,
        patience: Duration,
        before_attempt: BeforeAttempt,
    ) -> Result<Self> {
        terms.check()?;
        let failed = |error| Error::PeerLost(format!("cannot start the thread of the rendezvous: {error}"));
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("member").enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let within = runtime.enter();
        let caller = Caller::new(address, terms)?;
        drop(within);
        let lease = terms.timeout * 2 / 3;
        let id = nonce().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let shared = Arc::new(Shared::new(Newcomer { id, ..me }, lease, patience));
        let (commands, queue) = mpsc::unbounded_channel();
        let (running, ended) = blocking::channel::<()>();
        let link = Link { caller, shared: shared.clone(), before_attempt };
        runtime.spawn(async move {
            // Held until the last session has ended.
            let _running = running;
            link.run(queue).await;
        });
        let participant = Self { shared, commands, ended: Mutex::new(ended), runtime: Some(runtime) };
        participant.shared.wait(|news| news.is_known.then_some(()))?;
        Ok(participant)
    }

    /// Says that this process computes no more, what it holds, and why if it left by itself; waits for the next
    /// generation that it takes part in. `None` once the service has let it go.
    ///
    /// Calls `keep` when there are too few for a next generation, or none is left, and this process comes first among
    /// them.
    pub fn next(
        &self,
        standing: Standing,
        devices: usize,
        mut reason: Option<String>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Bulletin>> {
        let mut is_kept = false;
        let mut left = {
            let mut news = self.shared.news();
            (news.me.standing, news.me.devices, news.when_over) = (standing, devices, None);
            news.me.computing.take().map_or(0, |assembly| assembly.generation)
        };
        loop {
            let ready = Ready { generation: left, standing, devices, reason: reason.take() };
            let _ = self.commands.send(FromMember::Ready(ready.into()));
            match self.shared.wait(|news| news.call(left, is_kept))? {
                Call::Enter(bulletin) => {
                    self.shared.news().me.computing = Some(bulletin.assembly());
                    return Ok(Some(bulletin));
                }
                Call::Missed(generation) => left = generation,
                Call::Keep => {
                    is_kept = true;
                    keep()?;
                }
                Call::Go => {
                    self.shared.news().end = Some(End::Left);
                    return Ok(None);
                }
            }
        }
    }

    /// Calls `act` when the generation that began last is over; at once if it is already.
    pub fn when_over(&self, act: impl FnOnce() + Send + 'static) {
        let mut news = self.shared.news();
        news.when_over = Some(Box::new(act));
        news.settle(&self.shared.requests);
    }

    /// Whether the generation is to end after the step under way.
    pub fn is_ending(&self) -> bool {
        let news = self.shared.news();
        let ending = |bulletin: &Bulletin| news.computes_in(bulletin) && bulletin.phase == Phase::Ending;
        news.bulletin.as_ref().is_some_and(ending)
    }

    /// Waits until the lease is certain; fails once the generation is over.
    pub fn confirm(&self) -> std::result::Result<(), Verdict> {
        let lease = self.shared.lease;
        let confirmed = self.shared.wait(|news| {
            if let Some(over) = news.over() {
                return Some(Err(Verdict(over)));
            }
            news.confirmed.is_some_and(|sent| sent.elapsed() < lease).then_some(Ok(()))
        });
        confirmed.unwrap_or_else(|error| Err(Verdict(error.to_string())))
    }

    /// Why the generation is over, if it is.
    pub fn over(&self) -> Option<String> {
        self.shared.news().over()
    }

    /// Publishes `value` under `key` of this generation.
    pub fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), Verdict> {
        self.shared.requests.set(&self.key(key), value, |message| self.send(message), || self.unanswered())
    }

    /// The values of `keys` of this generation as soon as all are set, within `limit`.
    pub fn get(&self, keys: &[String], limit: Duration) -> std::result::Result<Vec<Vec<u8>>, Verdict> {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        self.shared.requests.get(&keys, limit, |message| self.send(message), || self.unanswered())
    }

    fn key(&self, key: &str) -> String {
        let news = self.shared.news();
        format!("{}/{key}", news.me.computing.as_ref().map_or(0, |assembly| assembly.generation))
    }

    fn unanswered(&self) -> Verdict {
        let news = self.shared.news();
        Verdict(news.over().unwrap_or_else(|| "the connection to the rendezvous was lost".into()))
    }

    fn send(&self, message: FromMember) {
        let _ = self.commands.send(message);
        let news = self.shared.news();
        // The end may have come between the question and its being noted.
        if news.absent.is_some() || news.over().is_some() {
            self.shared.requests.give_up();
        }
    }

    /// Tells this process from all others.
    pub fn id(&self) -> u64 {
        self.shared.news().me.id
    }

    /// Notes how many steps are done and how fast, for the next heartbeat.
    pub fn progress(&self, step: u64, images_per_second: f64) {
        let progress = &mut self.shared.news().progress;
        (progress.step, progress.images_per_second) = (step, images_per_second);
    }

    /// Notes what this process does from now on.
    pub fn doing(&self, activity: &str) {
        let activity = member::cut(activity);
        let text = &mut self.shared.news().progress.activity;
        text.clear();
        text.push_str(activity);
    }

    /// Reports that a collective of this generation failed.
    pub fn trouble(&self, symptom: &str) {
        let generation = self.shared.news().me.computing.as_ref().map_or(0, |assembly| assembly.generation);
        let symptom = member::cut(symptom).to_string();
        let _ = self.commands.send(FromMember::Trouble(Trouble { activity: None, symptom, generation }));
    }

    /// Asks to leave in good order; [`Participant::next`] says when.
    pub fn drain(&self) {
        self.shared.news().me.draining = true;
        let _ = self.commands.send(FromMember::Drain(true));
    }

    /// Takes leave: this process has finished, or `failed` for the reason given. Returns when the service knows, at the
    /// latest after 1 s.
    pub fn leave(&self, failed: Option<&str>) {
        let failed = failed.map(|reason| member::cut(reason).into());
        self.shared.news().end.get_or_insert(End::Left);
        if self.commands.send(FromMember::Leave(Leave { failed, activity: None })).is_ok() {
            // Disconnected is what is waited for; nothing is ever sent.
            let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(FAREWELL);
        }
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the service asks of a process that does not compute.
enum Call {
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
    fn call(&self, left: u64, is_kept: bool) -> Option<Call> {
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

    fn computes_in(&self, bulletin: &Bulletin) -> bool {
        self.me.computing.as_ref().is_some_and(|assembly| assembly.generation == bulletin.generation)
    }

    /// Why the generation is over in which this process computes.
    fn over(&self) -> Option<String> {
        if let Some(end) = &self.end {
            return Some(end.error().to_string());
        }
        let bulletin = self.bulletin.as_ref()?;
        let here = bulletin.members.iter().any(|entry| entry.id == self.me.id);
        let goes_on = self.computes_in(bulletin) && matches!(bulletin.phase, Phase::Running | Phase::Ending) && here;
        (!goes_on).then(|| bulletin.why.clone())
    }

    /// Acts on the end of the generation, if it has come.
    fn settle(&mut self, requests: &Requests) {
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
    fn new(me: Newcomer, lease: Duration, patience: Duration) -> Self {
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
    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `find` finds something, this process is out of the job, or the service is away for too long.
    fn wait<T>(&self, find: impl Fn(&News) -> Option<T>) -> Result<T> {
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

    fn change(&self, change: impl FnOnce(&mut News)) {
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

/// The thread that keeps the session.
struct Link {
    caller: Caller,
    shared: Arc<Shared>,
    before_attempt: BeforeAttempt,
}

impl Link {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<FromMember>) {
        let mut obstacle = "no answer".to_string();
        while self.shared.news().end.is_none() {
            (self.before_attempt)();
            let sent = Instant::now();
            match self.attempt().await {
                Ok((mut session, first)) => {
                    self.shared.change(|news| {
                        (news.absent, news.is_known, news.bulletin) = (None, false, None);
                        (news.confirmed, news.beats) = (Some(sent), VecDeque::new());
                    });
                    first.into_iter().for_each(|message| self.shared.hear(message));
                    let how = session.work(self.shared.as_ref(), &mut commands, &self.caller.terms).await;
                    let Some(how) = how else { break };
                    tracing::debug!("lost the rendezvous '{}': {how}", self.caller.address);
                    obstacle = how;
                    self.shared.change(|news| news.absent = Some(Instant::now()));
                    self.shared.requests.give_up();
                }
                Err(Obstacle::Final(error)) => self.end(error),
                Err(Obstacle::Passing(why)) => obstacle = why,
            }
            self.give_up_after(&obstacle);
            tokio::time::sleep(RETRY).await;
        }
        self.shared.requests.close();
    }

    /// A session, and the first message of it.
    async fn attempt(&self) -> std::result::Result<(Session, Option<FromService>), Obstacle> {
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

    fn give_up_after(&self, obstacle: &str) {
        let patience = self.shared.patience;
        let address = &self.caller.address;
        self.shared.change(|news| {
            if news.absent.is_some_and(|since| since.elapsed() > patience) {
                news.end.get_or_insert(End::Lost(format!(
                    "the rendezvous '{address}' was not to be reached for {}: {obstacle}; start it again, or wait longer \
                     with --elastic-timeout",
                    sentence::span(patience)
                )));
            }
        });
    }
}

/// What a visitor wants.
#[derive(Debug, Clone, Copy)]
pub enum Errand {
    /// To see who is there.
    Look,
    /// To have the member of this rank leave.
    Drain(usize),
}

/// Goes to the service at `address` for an errand; answers with who is there, or nothing if nobody ever was.
///
/// # Errors
/// A usage error for a refusal, [`Error::PeerLost`] if there is no service.
pub fn visit(address: &str, terms: &Terms, errand: Errand) -> Result<Option<Bulletin>> {
    let failed = |error| Error::PeerLost(format!("cannot start a thread: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let unreached = |why: String| Error::PeerLost(format!("there is no rendezvous at '{address}': {why}"));
    runtime.block_on(async {
        let caller = Caller::new(address, terms)?;
        let purpose = match errand {
            Errand::Look => Purpose::Look(true),
            Errand::Drain(rank) => Purpose::Drain(rank as u64),
        };
        let call = caller.call(Visit { purpose: Some(purpose) }.encode_to_vec(), "this visitor").await;
        let mut session = call.map_err(|obstacle| match obstacle {
            Obstacle::Passing(why) => unreached(why),
            Obstacle::Final(error) => error,
        })?;
        match session.next().await.map_err(unreached)? {
            Some(FromService::Bulletin(bulletin)) => Ok(Some(bulletin.into())),
            Some(FromService::Refusal(refusal)) => match caller.refused("this visitor", refusal) {
                Obstacle::Final(error) => Err(error),
                Obstacle::Passing(why) => Err(unreached(why)),
            },
            _ => Ok(None),
        }
    })
}
