//! A client of the rendezvous: one process' place in the job, as the rest of Kiln sees it.
//!
//! All calls block and may come from any thread. A thread of its own keeps the session with the service and the heart
//! beating while this process computes. In a job of fixed membership the session lasts as long as the job: every wait
//! ends with an answer, or with the verdict. In an elastic one the thread comes again when the connection is lost, and
//! tells the service each time what this process holds and computes, so that the service may be another one. Nobody
//! changes the state of such a run without a **lease**: the service must have answered a heartbeat that was sent so
//! recently that it cannot have given this process up since.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, mpsc as blocking};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use super::bulletin::{Assembly, Bulletin, Entry, Newcomer, Phase, Ready, Standing};
use super::comeback::{BeforeAttempt, Comeback};
use super::connection::Caller;
use super::news::{Attempt, Call, End, GLANCE, News, Shared};
use super::roster::strict::GRACE;
use super::secret::nonce;
use super::wire::FromMember;
use super::{Terms, Verdict};
use crate::error::{Error, Result};
use crate::launch::Next;

/// How long a leave may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// An activity is a place in the program, not an essay; a symptom may quote an engine.
const LONGEST_TEXT: usize = 4096;

/// This process' place in the job. Dropping it without [`leave`](Self::leave) looks to the others like its death.
pub struct Client {
    shared: Arc<Shared>,
    timeout: Duration,
    commands: mpsc::UnboundedSender<FromMember>,
    /// Disconnected when there is no session any more, and none to come.
    ended: Mutex<blocking::Receiver<()>>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.shared.news().me.id)
    }
}

impl Client {
    /// Comes to the job at `address` (`host:port`).
    ///
    /// Returns when all members of a fixed job are there; in an elastic one when the service has taken this process in,
    /// or has told that the run is complete. A usage error if the service refuses what this process was given (secret,
    /// rank, size, configuration, version), [`Error::PeerLost`] if it cannot be reached, or others do not come, for as
    /// long as `patience`.
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
        let id = nonce().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let shared = Arc::new(Shared::new(Newcomer { id, ..me }, terms, address, patience));
        let (commands, queue) = mpsc::unbounded_channel();
        let (running, ended) = blocking::channel::<()>();
        let comeback = Comeback { caller, shared: shared.clone(), before_attempt };
        runtime.spawn(async move {
            // Held until the last session has ended.
            let _running = running;
            comeback.run(queue).await;
        });
        let (timeout, ended) = (terms.timeout, Mutex::new(ended));
        let client = Self { shared, timeout, commands, ended, runtime: Some(runtime) };
        client.shared.wait(|news| news.is_in().then_some(()))?;
        Ok(client)
    }

    /// Everybody, those with a rank in its order.
    pub fn members(&self) -> Vec<Entry> {
        self.shared.news().bulletin.as_ref().map(|bulletin| bulletin.members.clone()).unwrap_or_default()
    }

    /// Says that this process computes no more, what it holds, and why if it left by itself; waits for the next
    /// generation that it takes part in.
    ///
    /// Calls `keep` when there are too few for a next generation, or none is left, and this process comes first among
    /// them; or when it wants to leave and there is no service to tell who is left.
    pub fn next(
        &self,
        standing: Standing,
        devices: usize,
        mut reason: Option<String>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Next<Bulletin>> {
        let mut is_kept = false;
        let mut left = {
            let mut news = self.shared.news();
            (news.me.standing, news.me.devices, news.when_over) = (standing, devices, None);
            news.me.computing.take().map_or(0, |assembly| assembly.generation)
        };
        loop {
            let ready = Ready { generation: left, standing, devices, reason: reason.take() };
            let _ = self.commands.send(FromMember::Ready(ready));
            match self.shared.wait(|news| news.call(left, is_kept))? {
                Call::Enter(bulletin) => {
                    self.shared.news().me.computing = Some(bulletin.assembly());
                    return Ok(Next::Begin(bulletin));
                }
                Call::Missed(generation) => left = generation,
                Call::Keep => {
                    is_kept = true;
                    if self.shared.news().is_alone() {
                        tracing::warn!("the rendezvous does not answer; this process leaves the run without it");
                    }
                    keep()?;
                }
                Call::Go => {
                    self.shared.news().end = Some(End::Left);
                    return Ok(Next::Left);
                }
                Call::Finish => return Ok(Next::Complete),
            }
        }
    }

    /// Calls `act` on a thread of its own when the generation that began last is over, or the fixed job; at once if it
    /// is already.
    pub fn when_over(&self, act: impl FnOnce() + Send + 'static) {
        let mut news = self.shared.news();
        news.when_over = Some(Box::new(act));
        news.settle(&self.shared.requests);
    }

    /// Waits for an attempt to connect other than `last`; nothing once this process is out of the job.
    pub fn next_attempt(&self, last: Option<Attempt>) -> Option<(Attempt, Assembly)> {
        let other = |news: &News| {
            let (attempt, assembly) = news.prospect()?;
            (Some(attempt) != last).then(|| (attempt, assembly.clone()))
        };
        self.shared.wait(other).ok()
    }

    /// Whether the generation of `attempt` is still to come.
    pub fn expects(&self, attempt: Attempt) -> bool {
        self.shared.news().prospect().is_some_and(|(present, _)| present == attempt)
    }

    /// Says how the attempt to connect went.
    pub fn connected(&self, attempt: Attempt, failure: Option<&str>) {
        let generation = attempt.generation;
        let _ = self.commands.send(match failure {
            None => FromMember::Connected(generation),
            Some(why) => FromMember::Trouble(self.shared.news().progress.clone(), generation, cut(why).into()),
        });
    }

    /// Whether others compute without this process, and there is no later attempt than this one to connect with it.
    pub fn is_left_out(&self, attempt: Attempt) -> bool {
        let news = self.shared.news();
        let is_running = news.bulletin.as_ref().is_some_and(|bulletin| bulletin.phase == Phase::Running);
        is_running && news.me.computing.is_none() && news.prospect().is_none_or(|(it, _)| it == attempt)
    }

    /// What an attempt to connect for `generation` would be in this session.
    pub fn attempt(&self, generation: u64) -> Attempt {
        Attempt { session: self.shared.news().session, generation }
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
            // A service that was reached again has yet to say whether it still counts on this process.
            let counted_on = news.bulletin.is_some();
            let is_fresh = news.confirmed.is_some_and(|sent| sent.elapsed() < lease);
            (counted_on && is_fresh).then_some(Ok(()))
        });
        confirmed.unwrap_or_else(|error| Err(Verdict(error.to_string())))
    }

    /// What a process without a part in a generation waits for, for people.
    pub fn awaited(&self) -> String {
        self.shared.news().awaited()
    }

    /// Why the generation is over, if it is.
    pub fn over(&self) -> Option<String> {
        self.shared.news().over()
    }

    /// Publishes `value` under `key`, which begins with the generation in an elastic job. The first write of a key stays:
    /// another one with other bytes is an error.
    pub fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), Verdict> {
        self.shared.requests.set(key, value, |message| self.send(message), || self.unanswered())
    }

    /// The values of `keys` as soon as all are set by anybody; an error that names missing ones after `limit`.
    pub fn get(&self, keys: &[String], limit: Duration) -> std::result::Result<Vec<Vec<u8>>, Verdict> {
        self.shared.requests.get(keys, limit, |message| self.send(message), || self.unanswered())
    }

    fn unanswered(&self) -> Verdict {
        let news = self.shared.news();
        Verdict(news.over().unwrap_or_else(|| "the connection to the rendezvous was lost".into()))
    }

    fn send(&self, message: FromMember) {
        // Under this lock the end comes either before, and the question is given up here, or later, and gives it up then.
        let news = self.shared.news();
        if news.absent.is_some() || news.over().is_some() {
            self.shared.requests.give_up();
        } else {
            let _ = self.commands.send(message);
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

    /// Notes what this process does from now on, such as `step 12, gradient all-reduce`, for the next heartbeat. In a job
    /// of fixed membership call it once before every collective: the number of calls tells who is behind.
    pub fn doing(&self, activity: &str) {
        let mut news = self.shared.news();
        news.progress.step += u64::from(news.is_strict());
        news.progress.activity.clear();
        news.progress.activity.push_str(cut(activity));
    }

    /// Reports that a collective failed, and says why. In a job of fixed membership it waits for the verdict, which comes
    /// after 2 s at the latest, or after the timeout if the service itself is lost.
    pub fn trouble(&self, symptom: &str) -> Verdict {
        let (report, is_strict) = {
            let news = self.shared.news();
            let generation = news.me.computing.as_ref().map_or(0, |assembly| assembly.generation);
            (FromMember::Trouble(news.progress.clone(), generation, cut(symptom).into()), news.is_strict())
        };
        let is_told = self.commands.send(report).is_ok();
        if !is_strict {
            return Verdict(self.over().unwrap_or_else(|| symptom.into()));
        }
        let deadline = Instant::now() + if is_told { GRACE + self.timeout + FAREWELL } else { Duration::ZERO };
        let unknown = || format!("a collective failed, and the rendezvous did not say why: {}", cut(symptom));
        let verdict = |news: &News| news.over().or_else(|| (Instant::now() >= deadline).then(unknown));
        let verdict = self.shared.wait(verdict).unwrap_or_else(|error| error.to_string());
        self.shared.end(End::Lost(verdict.clone()));
        Verdict(verdict)
    }

    /// Asks to leave in good order; [`Client::next`] says when.
    pub fn drain(&self) {
        self.shared.change(News::ask);
        let _ = self.commands.send(FromMember::Drain);
        // While replicas wait for those of other processes nobody else notices that the service does not answer.
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            while shared.news().end.is_none() {
                std::thread::sleep(GLANCE);
                shared.change(|_| ());
            }
        });
    }

    /// Takes leave: this process has finished, or `failed` for the reason given. Returns when the service knows, at the
    /// latest after 1 s.
    pub fn leave(&self, failed: Option<&str>) {
        let failed = failed.map(|reason| cut(reason).into());
        let progress = {
            let mut news = self.shared.news();
            news.end.get_or_insert(End::Left);
            news.progress.clone()
        };
        if self.commands.send(FromMember::Leave(progress, failed)).is_ok() {
            // Disconnected is what is waited for; nothing is ever sent.
            let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(FAREWELL);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// At most [`LONGEST_TEXT`] bytes of `text`.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}
