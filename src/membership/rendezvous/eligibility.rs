//! Which processes may join, and how members are named.

use super::MOST_MEMBERS;
use super::differences::compare;
use super::membership::ProcessInfo;
use super::refusal::Refusal;
use super::sentence;

/// The longest host name, in bytes (RFC 1035 allows 255).
const LONGEST_HOST: usize = 255;
/// A process that claims a greater generation is not believed, so that the numbers cannot overflow.
pub(super) const GREATEST_GENERATION: u64 = u64::MAX / 2;

/// `host b, process 4711`.
pub(super) fn called(host: &str, process: u32) -> String {
    format!("host {}, process {process}", sentence::line(host, 80))
}

/// `host b, process 4711`, or `rank 1 (host b, process 4711)` if ranks are given.
pub(super) fn name(info: &ProcessInfo) -> String {
    let name = called(&info.host, info.process);
    info.rank.map_or(name.clone(), |rank| format!("rank {rank} ({name})"))
}

/// `rank 1` if ranks are given, else as [`name`].
pub(super) fn short_name(info: &ProcessInfo) -> String {
    info.rank.map_or_else(|| name(info), |rank| format!("rank {rank}"))
}

/// The cause when a member reported that it failed.
pub(super) fn failed(info: &ProcessInfo, reason: &str) -> String {
    format!("{} failed: {}", name(info), sentence::line(reason, 300))
}

/// Refuses a process that may not join, or return to, `members`.
pub(super) fn examine<'a>(info: &ProcessInfo, members: impl Iterator<Item = &'a ProcessInfo>) -> Result<(), Refusal> {
    if info.host.len() > LONGEST_HOST {
        let why = format!("the host name of process {} is longer than {LONGEST_HOST} bytes", info.process);
        return Err(Refusal::permanent(why));
    }
    if info.devices == 0 {
        let why = format!("{} has no devices; give at least one with --gpu-ids", name(info));
        return Err(Refusal::permanent(why));
    }
    let claimed =
        info.computing.as_ref().map_or(0, |it| it.generation).max(info.latest_generation).max(info.holds.generation);
    if claimed > GREATEST_GENERATION {
        let why = format!("{} claims generation {claimed}, above the maximum of {GREATEST_GENERATION}", name(info));
        return Err(Refusal::permanent(why));
    }
    let others: Vec<_> = members.filter(|other| other.id != info.id).collect();
    if others.len() >= MOST_MEMBERS {
        return Err(Refusal::transient(format!("the job already has {MOST_MEMBERS} members, the maximum")));
    }
    // All members have the same configuration, so one comparison is enough.
    others
        .first()
        .map_or(Ok(()), |other| compare([info, other].map(|it| &it.configuration), [info, other].map(short_name)))
}
