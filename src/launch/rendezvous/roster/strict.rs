//! The strict rule of the [`roster`](super), for jobs of fixed membership: ranks are given, the job begins when
//! all are there, and its first loss ends it with one verdict that names who is to blame.
//!
//! What a verdict goes by, the strongest first: a process that says it failed; a session that ended without a word (its
//! process died); silence (it was stopped or cut off). Where a lost process was is what the others tell who missed it
//! there, and after an end of a session they are given a moment for that: its own last heartbeat may be many steps old.
//! If a member only reports that a collective broke, a short grace is left for evidence, since the reporter sees the
//! consequence before the service sees the cause; then the verdict names who did not come to that collective, or else
//! the connection.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::generation::elapsed;
use super::{Member, Roster};
use crate::launch::rendezvous::LATE_BEATS;
use crate::launch::rendezvous::bulletin::{Assembly, Event, Newcomer, Phase, Seat};
use crate::launch::rendezvous::placement::Block;
use crate::launch::rendezvous::refusal::Refusal;
use crate::launch::rendezvous::sentence::{line, place, ranks, span};

/// How long to wait for evidence after a member reported trouble.
pub const GRACE: Duration = Duration::from_secs(2);
/// How long the others have to tell where they missed a process whose session ended.
const NOTICE: Duration = Duration::from_millis(200);
/// A verdict names so many processes, and so many places where the others are.
const MOST_NAMED: usize = 3;
/// The longest text of a member that is repeated, in characters.
const LONGEST: usize = 300;

/// What speaks for or against a member once the job has begun.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Why it failed, by its own account.
    failed: Option<String>,
    /// What it noticed of a collective that broke.
    symptom: Option<String>,
    /// It took its leave with all done.
    finished: bool,
    /// How its session ended, if it did without a leave.
    gone: Option<String>,
}

impl Roster {
    /// Whether `who` may have the rank that it was given.
    pub(super) fn admit_rank(&self, who: &Newcomer) -> Result<(), Refusal> {
        let (size, given) = (self.rules.max, who.rank);
        let Some(rank) = given.filter(|rank| *rank < size) else {
            let rank = given.map_or("none".into(), |rank| rank.to_string());
            return Err(Refusal::lasting(format!("rank '{rank}' is out of range; --rank takes 0 to {}", size - 1)));
        };
        self.closed.clone().map_or(Ok(()), Err)?;
        if self.phase == Phase::Running {
            let why = format!("the job has begun with all of its {size} processes; start all of them anew");
            return Err(Refusal::passing(why));
        }
        let taken = self.members.iter().find(|member| member.who.rank == Some(rank) && member.who.id != who.id);
        taken.map_or(Ok(()), |member| {
            let name = member.name();
            Err(Refusal::passing(format!("{name} is here already; give every process its own --rank")))
        })
    }

    /// The ranks that did not come yet.
    pub(super) fn missing_ranks(&self) -> String {
        let is_here = |rank: &usize| self.members.iter().any(|member| member.who.rank == Some(*rank));
        ranks(&(0..self.rules.max).filter(|rank| !is_here(rank)).collect::<Vec<_>>())
    }

    pub(super) fn take_evidence(&mut self, event: Event, now: Instant) -> Option<()> {
        let has_begun = self.phase == Phase::Running;
        let has_cause = self.members.iter().any(|member| member.evidence.gone.is_some());
        match event {
            Event::Trouble(seat, _, symptom) if has_begun => {
                self.hear(seat, now)?.evidence.symptom.get_or_insert(symptom);
                self.due.get_or_insert(now + GRACE);
            }
            Event::Left(seat, reason) => match reason {
                // What fails after a process died may fail for that.
                Some(symptom) if has_cause => self.hear(seat, now)?.evidence.symptom = Some(symptom),
                Some(reason) => self.hear(seat, now)?.evidence.failed = Some(reason),
                None if has_begun => self.hear(seat, now)?.evidence.finished = true,
                None => self.remove(seat, None, now),
            },
            // Whoever goes before the job begins may come back, or be started anew.
            Event::Closed(seat, _) if !has_begun => self.remove(seat, None, now),
            Event::Closed(seat, how) => self.note_end(seat, how, now)?,
            _ => {}
        }
        Some(())
    }

    fn note_end(&mut self, seat: Seat, how: String, now: Instant) -> Option<()> {
        let member = self.members.iter_mut().find(|member| member.seat == seat && !member.evidence.finished)?;
        member.evidence.gone = Some(how);
        self.due = Some(self.due.map_or(now + NOTICE, |due| due.min(now + NOTICE)));
        Some(())
    }

    /// Begins the job when all are there, each with its own rank for a block.
    pub(super) fn gather(&mut self, now: Instant) {
        if self.phase != Phase::Waiting || self.members.len() < self.rules.max {
            return;
        }
        self.members.sort_by_key(|member| member.who.rank);
        for (rank, member) in self.members.iter_mut().enumerate() {
            (member.rank, member.computing) = (Some(rank), Some(1));
        }
        let block = |(rank, member): (usize, &Member)| Block {
            id: member.who.id,
            devices: member.who.devices,
            replicas: rank..rank + 1,
        };
        let blocks = self.members.iter().enumerate().map(block).collect();
        self.assembly = Assembly { generation: 1, blocks };
        self.enter(Phase::Running, now);
    }

    /// Why the job is over, if it is.
    pub(super) fn verdict(&self, now: Instant) -> Option<String> {
        let failed = |member: &Member| {
            let reason = line(member.evidence.failed.as_ref()?, LONGEST);
            Some(format!("{} failed at {}: {reason}", member.name(), place(&member.progress.activity)))
        };
        if let Some(failure) = self.members.iter().find_map(failed) {
            return Some(failure);
        }
        if self.phase != Phase::Running {
            return None;
        }
        let is_due = self.due.is_some_and(|due| now >= due);
        let gone = self.those(|member| member.evidence.gone.is_some());
        if let Some(how) = gone.iter().find_map(|member| member.evidence.gone.as_deref()) {
            let has_told = |Member { evidence, .. }: &Member| {
                evidence.finished || evidence.gone.is_some() || evidence.symptom.is_some()
            };
            let is_known = is_due || self.members.iter().all(has_told);
            return is_known.then(|| self.loss(&gone, how));
        }
        let silent = |limit| self.those(|it| !it.evidence.finished && elapsed(it.heard, now) > limit);
        let late = silent(self.rules.beat.saturating_mul(LATE_BEATS));
        if !silent(self.rules.lost_after).is_empty() || (self.due.is_some() && !late.is_empty()) {
            let longest = late.iter().map(|member| elapsed(member.heard, now)).max().unwrap_or_default();
            return Some(self.loss(&late, &format!("no sign of life for {}", span(longest))));
        }
        is_due.then(|| self.explain())
    }

    fn those(&self, which: impl Fn(&Member) -> bool) -> Vec<&Member> {
        self.members.iter().filter(|member| which(member)).collect()
    }

    /// Who was lost, how, and the latest place that anybody told of: nobody gets past a collective without them.
    fn loss(&self, lost: &[&Member], how: &str) -> String {
        let at_work = self.those(|member| !member.evidence.finished);
        let latest = at_work.iter().max_by_key(|member| member.progress.step);
        let latest = place(latest.map(|member| member.progress.activity.as_str()).unwrap_or_default());
        let mut others = BTreeMap::<_, Vec<_>>::new();
        for member in at_work.iter().filter(|member| !lost.iter().any(|it| it.seat == member.seat)) {
            others.entry(place(&member.progress.activity)).or_default().extend(member.rank);
        }
        let others = others.iter().take(MOST_NAMED);
        let others: String =
            others.map(|(place, found)| format!("; {} {} at {place}", ranks(found), were(found.len()))).collect();
        format!("{} {} lost at {latest}: {}{others}", names(lost), were(lost.len()), line(how, LONGEST))
    }

    /// Everybody is alive and nobody admits to a failure: who did not come to the collective that broke? If all came,
    /// what is left is the network between them.
    fn explain(&self) -> String {
        let troubled = self.members.iter().filter(|member| member.evidence.symptom.is_some());
        let reporter = troubled.max_by_key(|member| member.progress.step).expect("the grace begins with a report");
        let symptom = line(reporter.evidence.symptom.as_deref().unwrap_or_default(), LONGEST);
        let (name, place_of) = (reporter.name(), |member: &Member| place(&member.progress.activity));
        let here = place_of(reporter);
        let absent = self.those(|it| it.evidence.symptom.is_none() && it.progress.step < reporter.progress.step);
        let Some(first) = absent.iter().min_by_key(|member| member.progress.step) else {
            return format!(
                "the connection between {name} and its peers broke at {here}, though all processes are alive: {symptom}"
            );
        };
        let late: Vec<_> = absent.iter().filter(|it| it.progress.step == first.progress.step).copied().collect();
        let finished = late.iter().all(|member| member.evidence.finished);
        let state = if finished { "had finished already, last" } else { "still" };
        format!("{} did not come to {here}: {state} at {}; {name} waited: {symptom}", names(&late), place_of(first))
    }
}

fn names(members: &[&Member]) -> String {
    let named = members.iter().take(MOST_NAMED).map(|member| member.name());
    let more = members.len().checked_sub(MOST_NAMED).filter(|more| *more > 0).map(|more| format!("{more} more"));
    named.chain(more).collect::<Vec<_>>().join(" and ")
}

fn were(count: usize) -> &'static str {
    if count == 1 { "was" } else { "were" }
}
