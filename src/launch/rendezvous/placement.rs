//! Which replicas a member of an elastic job computes: one contiguous block for each member.
//!
//! Pure arithmetic. Blocks are proportional to the devices, and when membership changes, as many replicas as possible
//! stay where they are; who takes part at all is decided by the [`roster`](super::roster).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A member that could compute replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Unique to the member.
    pub id: u64,
    /// How many devices it has.
    pub devices: usize,
}

/// What one member computes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The member.
    pub id: u64,
    /// How many of its devices are in use; each computes at least one replica.
    pub devices: usize,
    /// Its replicas; never empty in a placement.
    pub replicas: Range<usize>,
}

/// The hosts that get replicas if they are served in order, each with the devices in use.
pub fn fit(world: usize, hosts: &[Host]) -> Vec<Host> {
    let mut left = world;
    let take = |host: &Host| {
        let devices = host.devices.min(left);
        left -= devices;
        Host { devices, ..*host }
    };
    hosts.iter().map(take).filter(|host| host.devices > 0).collect()
}

/// Places `world` replicas on `hosts`, which come in order of seniority; `before` is what each computed so far.
///
/// The blocks cover `0..world` in rank order. Hosts from before keep their order, so that rank 0 is stable; each other
/// one goes where the fewest replicas change their host, and the last of such places. Remainders of a division go to
/// those from before first. A host for which no replica is left is not in the result.
pub fn place(world: usize, hosts: &[Host], before: &[(u64, Range<usize>)]) -> Vec<Block> {
    let before: BTreeMap<u64, Range<usize>> = before.iter().cloned().collect();
    let mut hosts = fit(world, hosts);
    hosts.sort_by_key(|host| before.get(&host.id).map_or((true, 0), |replicas| (false, replicas.start)));
    let survivors = hosts.iter().filter(|host| before.contains_key(&host.id)).count();
    let mut parts: Vec<Part> = Vec::with_capacity(hosts.len());
    for (number, (host, size)) in hosts.iter().zip(shares(world, &hosts)).enumerate() {
        let part = Part { host: *host, size, before: before.get(&host.id).cloned().unwrap_or(0..0) };
        let place = if number < survivors { number } else { best_place(&parts, size) };
        parts.insert(place, part);
    }
    let mut start = 0;
    parts.iter().map(|part| part.block(&mut start)).collect()
}

/// A host with its share.
struct Part {
    host: Host,
    size: usize,
    before: Range<usize>,
}

impl Part {
    fn block(&self, start: &mut usize) -> Block {
        let replicas = *start..*start + self.size;
        *start = replicas.end;
        Block { id: self.host.id, devices: self.host.devices, replicas }
    }

    /// How many replicas stay on this host if its block begins at `start`.
    fn kept(&self, start: usize) -> i64 {
        let (from, to) = (start.max(self.before.start), (start + self.size).min(self.before.end));
        to.saturating_sub(from) as i64
    }
}

/// Proportional to the devices by largest remainder, ties to the earlier. There are no more devices than replicas, so
/// no share is smaller than the devices of its host.
fn shares(world: usize, hosts: &[Host]) -> Vec<usize> {
    let devices: u128 = hosts.iter().map(|host| host.devices as u128).sum();
    let exact = |host: &Host| world as u128 * host.devices as u128;
    let mut shares: Vec<_> = hosts.iter().map(|host| (exact(host) / devices) as usize).collect();
    let left = world.saturating_sub(shares.iter().sum());
    let mut order: Vec<_> = (0..hosts.len()).collect();
    order.sort_by_key(|&index| Reverse(exact(&hosts[index]) % devices));
    order.iter().take(left).for_each(|&index| shares[index] += 1);
    shares
}

/// Where a block of `size` replicas pushes the fewest replicas of `parts` to another host; never before the first.
fn best_place(parts: &[Part], size: usize) -> usize {
    let mut start: usize = parts.iter().map(|part| part.size).sum();
    let (mut gain, mut best) = (0, (0, parts.len()));
    for (place, part) in parts.iter().enumerate().skip(1).rev() {
        start -= part.size;
        gain += part.kept(start + size) - part.kept(start);
        if gain > best.0 {
            best = (gain, place);
        }
    }
    best.1
}
