//! Who may be a member, and how members are named.

use super::MOST_MEMBERS;
use super::bulletin::Newcomer;
use super::differences::compare;
use super::refusal::Refusal;
use super::sentence;

/// The longest host name, in bytes (RFC 1035 allows 255).
const LONGEST_HOST: usize = 255;
/// No job comes near so many generations; numbers beyond would leave no room to grow.
const GREATEST_GENERATION: u64 = u64::MAX / 2;

/// `host b, process 4711`.
pub(super) fn called(host: &str, process: u32) -> String {
    format!("host {}, process {process}", sentence::line(host, 80))
}

/// `rank 1 (host b, process 4711)` where ranks are given.
pub(super) fn name(who: &Newcomer) -> String {
    let name = called(&who.host, who.process);
    who.rank.map_or(name.clone(), |rank| format!("rank {rank} ({name})"))
}

/// `rank 1` where ranks are given, which is enough for a person who gave them.
pub(super) fn short_name(who: &Newcomer) -> String {
    who.rank.map_or_else(|| name(who), |rank| format!("rank {rank}"))
}

/// A member ended, or left its generation, by its own account.
pub(super) fn failed(who: &Newcomer, reason: &str) -> String {
    format!("{} failed: {}", name(who), sentence::line(reason, 300))
}

/// Whether `who` may join, or come back to, `members`.
pub(super) fn examine<'a>(who: &Newcomer, members: impl Iterator<Item = &'a Newcomer>) -> Result<(), Refusal> {
    if who.host.len() > LONGEST_HOST {
        let why = format!("the host name of process {} is longer than {LONGEST_HOST} bytes", who.process);
        return Err(Refusal::lasting(why));
    }
    if who.devices == 0 {
        let why = format!("{} has no devices; a member computes on at least one, which --gpu-ids names", name(who));
        return Err(Refusal::lasting(why));
    }
    let claimed = who.computing.as_ref().map_or(0, |it| it.generation).max(who.heard).max(who.standing.generation);
    if claimed > GREATEST_GENERATION {
        let why = format!("{} claims generation {claimed}; the greatest is {GREATEST_GENERATION}", name(who));
        return Err(Refusal::lasting(why));
    }
    let others: Vec<_> = members.filter(|other| other.id != who.id).collect();
    if others.len() >= MOST_MEMBERS {
        return Err(Refusal::passing(format!("the job has {MOST_MEMBERS} members, and takes no more")));
    }
    // All members have equal configurations, so any of them stands for all.
    others
        .first()
        .map_or(Ok(()), |other| compare([who, other].map(|it| &it.configuration), [who, other].map(short_name)))
}
