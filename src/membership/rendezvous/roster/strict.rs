//! The strict rules of the [`roster`](super), for jobs of fixed membership: ranks are given, the job begins when all
//! members have joined, and the first loss ends it with a verdict that names the process at fault.
//!
//! The evidence for a verdict, the strongest first: a process reports that it failed; a session ends without a leave
//! (its process died); silence (it was stopped or disconnected). The activity of a lost process is taken from the
//! members that waited for it, since its own last heartbeat may be many steps old; after the end of a session they have
//! a short time to report it. If a member only reports that a collective failed, the service waits for stronger
//! evidence, since the reporter sees the consequence before the service sees the cause; then the verdict names the
//! members that did not reach that collective, or else the connection.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::generation::elapsed;
use super::{Member, Roster};
use crate::rendezvous::LATE_BEATS;
use crate::rendezvous::membership::{Event, Phase, Placement, ProcessInfo, SessionId};
use crate::rendezvous::placement::Block;
use crate::rendezvous::refusal::Refusal;
use crate::rendezvous::sentence::{line, place, ranks, span};

/// How long to wait for evidence after a member reported trouble.
pub const GRACE: Duration = Duration::from_secs(2);
/// How long the others have to report their activity after a session ended.
const NOTICE: Duration = Duration::from_millis(200);
/// How many processes, and how many activities of the others, a verdict names.
const MOST_NAMED: usize = 3;
/// The longest text of a member that a verdict quotes, in characters.
const LONGEST: usize = 300;

/// The evidence about a member once the job has begun.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Its own report why it failed.
    failed: Option<String>,
    /// Its error from a collective that failed.
    symptom: Option<String>,
    finished: bool,
    /// How its session ended, if it ended without a leave.
    gone: Option<String>,
}

impl Roster {
    /// Refuses a process if its rank is taken or out of range, or if it comes too late.
    pub(super) fn admit_rank(&self, info: &ProcessInfo) -> Result<(), Refusal> {
        let (size, given) = (self.rules.max, info.rank);
        let Some(rank) = given.filter(|rank| *rank < size) else {
            let rank = given.map_or("none".into(), |rank| rank.to_string());
            return Err(Refusal::permanent(format!("rank '{rank}' is out of range; --rank takes 0 to {}", size - 1)));
        };
        self.ended.clone().map_or(Ok(()), Err)?;
        if self.phase == Phase::Running {
            let why = format!("the job has already begun with all of its {size} processes; restart all of them");
            return Err(Refusal::transient(why));
        }
        let taken = self.members.iter().find(|member| member.info.rank == Some(rank) && member.info.id != info.id);
        taken.map_or(Ok(()), |member| {
            let name = member.name();
            Err(Refusal::transient(format!("{name} is already here; give every process its own --rank")))
        })
    }

    pub(super) fn missing_ranks(&self) -> String {
        let is_here = |rank: &usize| self.members.iter().any(|member| member.info.rank == Some(*rank));
        ranks(&(0..self.rules.max).filter(|rank| !is_here(rank)).collect::<Vec<_>>())
    }

    pub(super) fn take_evidence(&mut self, event: Event, now: Instant) -> Option<()> {
        let has_begun = self.phase == Phase::Running;
        let has_cause = self.members.iter().any(|member| member.evidence.gone.is_some());
        match event {
            Event::Trouble(session, _, symptom) if has_begun => {
                self.heard_from(session, now)?.evidence.symptom.get_or_insert(symptom);
                self.verdict_due.get_or_insert(now + GRACE);
            }
            Event::Left(session, reason) => match reason {
                // An error after another process died may be its consequence.
                Some(symptom) if has_cause => self.heard_from(session, now)?.evidence.symptom = Some(symptom),
                Some(reason) => self.heard_from(session, now)?.evidence.failed = Some(reason),
                None if has_begun => self.heard_from(session, now)?.evidence.finished = true,
                None => self.remove(session, None, now),
            },
            // A member that goes before the job begins may come back, or be started again.
            Event::Closed(session, _) if !has_begun => self.remove(session, None, now),
            Event::Closed(session, how) => self.note_end(session, how, now)?,
            _ => {}
        }
        Some(())
    }

    fn note_end(&mut self, session: SessionId, how: String, now: Instant) -> Option<()> {
        let member = self.members.iter_mut().find(|member| member.session == session && !member.evidence.finished)?;
        member.evidence.gone = Some(how);
        self.verdict_due = Some(self.verdict_due.map_or(now + NOTICE, |due| due.min(now + NOTICE)));
        Some(())
    }

    /// Begins the job when all members have joined; the block of each is its rank.
    pub(super) fn begin_when_all_joined(&mut self, now: Instant) {
        if self.phase != Phase::Waiting || self.members.len() < self.rules.max {
            return;
        }
        self.members.sort_by_key(|member| member.info.rank);
        for (rank, member) in self.members.iter_mut().enumerate() {
            (member.rank, member.computing) = (Some(rank), Some(1));
        }
        let block = |(rank, member): (usize, &Member)| Block {
            id: member.info.id,
            devices: member.info.devices,
            replicas: rank..rank + 1,
        };
        let blocks = self.members.iter().enumerate().map(block).collect();
        self.placement = Placement { generation: 1, blocks };
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
        let is_due = self.verdict_due.is_some_and(|due| now >= due);
        let gone = self.members_where(|member| member.evidence.gone.is_some());
        if let Some(how) = gone.iter().find_map(|member| member.evidence.gone.as_deref()) {
            let has_told = |Member { evidence, .. }: &Member| {
                evidence.finished || evidence.gone.is_some() || evidence.symptom.is_some()
            };
            let is_known = is_due || self.members.iter().all(has_told);
            return is_known.then(|| self.loss(&gone, how));
        }
        let silent = |limit| self.members_where(|it| !it.evidence.finished && elapsed(it.last_heard, now) > limit);
        let late = silent(self.rules.beat.saturating_mul(LATE_BEATS));
        if !silent(self.rules.lost_after).is_empty() || (self.verdict_due.is_some() && !late.is_empty()) {
            let longest = late.iter().map(|member| elapsed(member.last_heard, now)).max().unwrap_or_default();
            return Some(self.loss(&late, &format!("no sign of life for {}", span(longest))));
        }
        is_due.then(|| self.explain())
    }

    fn members_where(&self, which: impl Fn(&Member) -> bool) -> Vec<&Member> {
        self.members.iter().filter(|member| which(member)).collect()
    }

    /// The verdict on a loss, with the latest activity of any member: none gets past a collective without the lost
    /// ones.
    fn loss(&self, lost: &[&Member], how: &str) -> String {
        let active = self.members_where(|member| !member.evidence.finished);
        let latest = active.iter().max_by_key(|member| member.progress.step);
        let latest = place(latest.map(|member| member.progress.activity.as_str()).unwrap_or_default());
        let mut others = BTreeMap::<_, Vec<_>>::new();
        for member in active.iter().filter(|member| !lost.iter().any(|it| it.session == member.session)) {
            others.entry(place(&member.progress.activity)).or_default().extend(member.rank);
        }
        let others = others.iter().take(MOST_NAMED);
        let others: String =
            others.map(|(place, found)| format!("; {} {} at {place}", ranks(found), were(found.len()))).collect();
        format!("{} {} lost at {latest}: {}{others}", names(lost), were(lost.len()), line(how, LONGEST))
    }

    /// The verdict if all members are alive and none reports its own failure: names the members that did not reach the
    /// failed collective or, if all did, the connection between them.
    fn explain(&self) -> String {
        let troubled = self.members.iter().filter(|member| member.evidence.symptom.is_some());
        let reporter = troubled.max_by_key(|member| member.progress.step).expect("the grace begins with a report");
        let symptom = line(reporter.evidence.symptom.as_deref().unwrap_or_default(), LONGEST);
        let (name, place_of) = (reporter.name(), |member: &Member| place(&member.progress.activity));
        let here = place_of(reporter);
        let absent =
            self.members_where(|it| it.evidence.symptom.is_none() && it.progress.step < reporter.progress.step);
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
