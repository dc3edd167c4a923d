//! The policy: who may sit down, when the job begins, and who is to blame when it ends.
//!
//! A pure state machine: events and the time go in, actions come out; it knows no network and no clock of its own. It
//! decides once. What it goes by, the strongest first: a process that says it failed; a session that ended without a
//! word (its process died); silence (it was stopped or cut off). Where a lost process was is what the others tell who
//! missed it there, and after an end of a session they are given a moment for that: its own last heartbeat may be many
//! steps old. If a member only
//! reports that a collective broke, the judge waits a short grace for evidence, since the reporter sees the consequence
//! before the service sees the cause; then it names who did not come to that collective, or else the connection. Wording
//! is left to `sentence`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::differences::compare;
use super::sentence::{self, Others};
use super::wire::{Activity, FromMember, Refusal};
use super::{Introduction, Terms};

/// How long to wait for evidence after a member reported trouble.
pub const GRACE: Duration = Duration::from_secs(2);
/// How long the others have to tell where they missed a process whose session ended.
const NOTICE: Duration = Duration::from_millis(200);
/// So many heartbeats may be late without meaning anything.
const LATE_BEATS: u32 = 3;
/// The longest host name, in bytes (RFC 1035 allows 255).
const LONGEST_HOST: usize = 255;

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A process proved that it knows the secret, and introduced itself.
    Came(Introduction),
    /// A sign of life.
    Beat(usize, Activity),
    /// A member's collective failed or timed out, with this symptom.
    Trouble(usize, Activity, String),
    /// A member took its leave: finished, or failed for the reason given.
    Left(usize, Activity, Option<String>),
    /// A member's session ended without a leave, and how, as in "its connection closed".
    Closed(usize, String),
    /// Time went by.
    Tick,
}

impl Event {
    /// What a message of the member `rank` means to the judge; `None` if it does not concern it.
    pub fn of(rank: usize, message: FromMember) -> Option<Self> {
        match message {
            FromMember::Beat(doing) => Some(Self::Beat(rank, doing)),
            FromMember::Trouble(it) => Some(Self::Trouble(rank, it.activity.unwrap_or_default(), it.symptom)),
            FromMember::Leave(it) => Some(Self::Left(rank, it.activity.unwrap_or_default(), it.failed)),
            // Greetings are over, and the store is not the judge's.
            FromMember::Hello(_) | FromMember::Proof(_) | FromMember::Set(_) | FromMember::Get(_) => None,
            // Membership of this job does not change.
            FromMember::Ready(_) | FromMember::Drain(_) | FromMember::Connected(_) => None,
        }
    }
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Admit the process that came.
    Welcome,
    /// Send the process that came away.
    Refuse(Refusal),
    /// Tell everybody which ranks are still missing, such as "rank 1".
    Await(String),
    /// Tell everybody who is there: the job begins.
    Begin(Vec<Introduction>),
    /// Tell everybody the verdict.
    Decide(String),
}

/// A member as the judge sees it.
#[derive(Debug)]
pub(super) struct Seat {
    pub who: Introduction,
    pub doing: Activity,
    pub symptom: Option<String>,
    pub finished: bool,
    /// How its session ended, if it did without a leave.
    gone: Option<String>,
    heard: Instant,
}

#[derive(Debug)]
enum Phase {
    Gathering,
    Working,
    Over(String),
}

/// The state of one job.
#[derive(Debug)]
pub struct Judge {
    size: usize,
    timeout: Duration,
    beat: Duration,
    phase: Phase,
    seats: BTreeMap<usize, Seat>,
    /// When trouble must be explained that was reported, or an end of a session.
    due: Option<Instant>,
    /// The last time anything happened, ticks included.
    awake: Instant,
}

impl Judge {
    /// Nobody is there yet.
    pub fn new(terms: &Terms, now: Instant) -> Self {
        let Terms { size, timeout, beat, .. } = *terms;
        Self { size, timeout, beat, phase: Phase::Gathering, seats: BTreeMap::new(), due: None, awake: now }
    }

    /// Takes in what happened at `now`.
    pub fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        self.forgive_own_absence(now);
        match event {
            Event::Came(who) => return self.receive(who, now),
            _ if matches!(self.phase, Phase::Over(_)) => return Vec::new(),
            Event::Beat(rank, doing) => self.hear(rank, doing, now),
            Event::Trouble(rank, doing, symptom) => self.note(rank, doing, symptom, now),
            Event::Left(rank, doing, failed) => {
                self.hear(rank, doing, now);
                return self.part(rank, failed, now);
            }
            Event::Closed(rank, how) => return self.miss(rank, how, now),
            Event::Tick => {}
        }
        self.weigh(now)
    }

    /// Nobody's silence counts for the time in which the service itself did not run (it was stopped and continued).
    fn forgive_own_absence(&mut self, now: Instant) {
        let absent = now.saturating_duration_since(self.awake);
        if absent > self.beat * LATE_BEATS {
            self.seats.values_mut().for_each(|seat| seat.heard += absent);
            self.due = self.due.map(|due| due + absent);
        }
        self.awake = now;
    }

    fn receive(&mut self, who: Introduction, now: Instant) -> Vec<Action> {
        if let Err(refusal) = self.examine(&who) {
            return vec![Action::Refuse(refusal)];
        }
        let seat = Seat { who, doing: Activity::default(), symptom: None, finished: false, gone: None, heard: now };
        self.seats.insert(seat.who.rank, seat);
        if self.seats.len() < self.size {
            return vec![Action::Welcome, Action::Await(self.missing())];
        }
        self.phase = Phase::Working;
        self.seats.values_mut().for_each(|seat| seat.heard = now);
        vec![Action::Welcome, Action::Begin(self.seats.values().map(|seat| seat.who.clone()).collect())]
    }

    fn examine(&self, who: &Introduction) -> Result<(), Refusal> {
        let (rank, size) = (who.rank, self.size);
        if rank >= size {
            return Err(Refusal::lasting(format!("rank '{rank}' is out of range; --rank takes 0 to {}", size - 1)));
        }
        if who.host.len() > LONGEST_HOST {
            return Err(Refusal::lasting(format!("the host name of rank {rank} is longer than {LONGEST_HOST} bytes")));
        }
        match &self.phase {
            Phase::Over(verdict) => return Err(Refusal::passing(format!("the job is over: {verdict}"))),
            Phase::Working => {
                let why = format!("the job has begun with all of its {size} processes; start all of them anew");
                return Err(Refusal::passing(why));
            }
            Phase::Gathering => {}
        }
        if let Some(seat) = self.seats.get(&rank) {
            let name = sentence::name(&seat.who);
            return Err(Refusal::passing(format!("{name} is here already; give every process its own --rank")));
        }
        self.compare(who)
    }

    /// All members have equal configurations, so any of them stands for all.
    fn compare(&self, who: &Introduction) -> Result<(), Refusal> {
        let Some(Seat { who: first, .. }) = self.seats.values().next() else { return Ok(()) };
        let names = [who, first].map(|it| format!("rank {}", it.rank));
        compare([&who.configuration, &first.configuration], [&names[0], &names[1]])
    }

    fn missing(&self) -> String {
        let absent: Vec<_> = (0..self.size).filter(|rank| !self.seats.contains_key(rank)).collect();
        sentence::ranks(&absent)
    }

    fn hear(&mut self, rank: usize, doing: Activity, now: Instant) {
        if let Some(seat) = self.seats.get_mut(&rank) {
            (seat.heard, seat.doing) = (now, doing);
        }
    }

    fn note(&mut self, rank: usize, doing: Activity, symptom: String, now: Instant) {
        self.hear(rank, doing, now);
        if !matches!(self.phase, Phase::Working) {
            return;
        }
        if let Some(seat) = self.seats.get_mut(&rank) {
            seat.symptom.get_or_insert(symptom);
            self.due.get_or_insert(now + GRACE);
        }
    }

    fn part(&mut self, rank: usize, failed: Option<String>, now: Instant) -> Vec<Action> {
        let has_cause = self.seats.values().any(|seat| seat.gone.is_some());
        let Some(seat) = self.seats.get_mut(&rank) else { return Vec::new() };
        match failed {
            // What fails after a process died may fail for that.
            Some(symptom) if has_cause => {
                seat.symptom = Some(symptom);
                self.weigh(now)
            }
            Some(reason) => {
                let verdict = sentence::failed(seat, &reason);
                self.decide(verdict)
            }
            None if matches!(self.phase, Phase::Gathering) => self.miss(rank, String::new(), now),
            None => {
                seat.finished = true;
                Vec::new()
            }
        }
    }

    fn miss(&mut self, rank: usize, how: String, now: Instant) -> Vec<Action> {
        if matches!(self.phase, Phase::Gathering) {
            // Whoever goes before the job begins may come back, or be started anew.
            return self.seats.remove(&rank).map_or(Vec::new(), |_| vec![Action::Await(self.missing())]);
        }
        if let Some(seat) = self.seats.get_mut(&rank).filter(|seat| !seat.finished) {
            seat.gone = Some(how);
            self.due = Some(self.due.map_or(now + NOTICE, |due| due.min(now + NOTICE)));
        }
        self.weigh(now)
    }

    /// What can be concluded from the passing of time.
    fn weigh(&mut self, now: Instant) -> Vec<Action> {
        if !matches!(self.phase, Phase::Working) {
            return Vec::new();
        }
        let is_due = self.due.is_some_and(|due| now >= due);
        let gone: Vec<_> = self.seats.values().filter(|seat| seat.gone.is_some()).map(|seat| seat.who.rank).collect();
        if !gone.is_empty() {
            let has_told = |seat: &Seat| seat.finished || seat.gone.is_some() || seat.symptom.is_some();
            let is_known = is_due || self.seats.values().all(has_told);
            let how = self.seats.values().find_map(|seat| seat.gone.as_deref()).unwrap_or_default();
            return if is_known { self.decide(self.loss(&gone, how)) } else { Vec::new() };
        }
        let late = self.silent(self.beat * LATE_BEATS, now);
        let lost = !self.silent(self.timeout, now).is_empty();
        if lost || (self.due.is_some() && !late.is_empty()) {
            let silence = |rank| now.saturating_duration_since(self.seats[rank].heard);
            let longest = late.iter().map(silence).max().unwrap_or_default();
            return self.decide(self.loss(&late, &format!("no sign of life for {}", sentence::span(longest))));
        }
        if is_due { self.decide(self.explain()) } else { Vec::new() }
    }

    /// Who was lost, how, and the latest place that anybody told of: nobody gets past a collective without them.
    fn loss(&self, gone: &[usize], how: &str) -> String {
        let seats: Vec<_> = gone.iter().map(|rank| &self.seats[rank]).collect();
        let latest = self.seats.values().filter(|seat| !seat.finished).max_by_key(|seat| seat.doing.count);
        let place = latest.map(|seat| seat.doing.text.as_str()).unwrap_or_default();
        sentence::lost(&seats, place, how, &self.others(gone))
    }

    fn silent(&self, limit: Duration, now: Instant) -> Vec<usize> {
        let silent = |seat: &Seat| !seat.finished && now.saturating_duration_since(seat.heard) > limit;
        self.seats.iter().filter(|(_, seat)| silent(seat)).map(|(rank, _)| *rank).collect()
    }

    /// Everybody is alive and nobody admits to a failure: who did not come to the collective that broke?
    fn explain(&self) -> String {
        let troubled = self.seats.values().filter(|seat| seat.symptom.is_some());
        let reporter = troubled.max_by_key(|seat| seat.doing.count).expect("the grace begins with a report");
        let absent = |seat: &&Seat| seat.symptom.is_none() && seat.doing.count < reporter.doing.count;
        let Some(lowest) = self.seats.values().filter(absent).map(|seat| seat.doing.count).min() else {
            return sentence::broken(reporter);
        };
        let late: Vec<_> = self.seats.values().filter(absent).filter(|seat| seat.doing.count == lowest).collect();
        sentence::absent(&late, reporter)
    }

    fn others(&self, lost: &[usize]) -> Others {
        let others = self.seats.values().filter(|seat| !seat.finished && !lost.contains(&seat.who.rank));
        Others::of(others)
    }

    fn decide(&mut self, verdict: String) -> Vec<Action> {
        self.phase = Phase::Over(verdict.clone());
        vec![Action::Decide(verdict)]
    }
}
