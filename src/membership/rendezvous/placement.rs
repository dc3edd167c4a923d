//! Which replicas each member of an elastic job computes: one contiguous block per member.
//!
//! Pure arithmetic. Blocks are proportional to the devices, or by their speeds if all are known; when membership changes, as many replicas as possible keep
//! their member. The [`roster`](super::roster) decides which members take part.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::speed::{Speed, by_speed};

/// A member that could compute replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub id: u64,
    pub devices: usize,
    /// As in [`Speed`].
    pub nanoseconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub id: u64,
    /// How many of its devices are used; each computes at least one replica.
    pub devices: usize,
    /// Never empty in a placement.
    pub replicas: Range<usize>,
}

/// The candidates that get replicas if they are served in order, each with the devices it uses.
pub fn fit(world: usize, candidates: &[Candidate]) -> Vec<Candidate> {
    let mut left = world;
    let take = |candidate: &Candidate| {
        let devices = candidate.devices.min(left);
        left -= devices;
        Candidate { devices, ..*candidate }
    };
    candidates.iter().map(take).filter(|candidate| candidate.devices > 0).collect()
}

/// Places `world` replicas on `candidates`, which are in order of seniority; `before` has the blocks so far.
///
/// The blocks cover `0..world` in rank order. Members with a block before keep their order, so that rank 0 is stable;
/// each new one is inserted where the fewest replicas change their member, at the last such position. Remainders go
/// first to members that already had a block. A candidate without a replica is not in the result.
pub fn place(world: usize, candidates: &[Candidate], before: &[(u64, Range<usize>)]) -> Vec<Block> {
    let before: BTreeMap<u64, Range<usize>> = before.iter().cloned().collect();
    let mut candidates = fit(world, candidates);
    candidates.sort_by_key(|candidate| before.get(&candidate.id).map_or((true, 0), |replicas| (false, replicas.start)));
    let survivors = candidates.iter().filter(|candidate| before.contains_key(&candidate.id)).count();
    let mut planned: Vec<PlannedBlock> = Vec::with_capacity(candidates.len());
    for (number, (candidate, size)) in candidates.iter().zip(shares(world, &candidates)).enumerate() {
        let block =
            PlannedBlock { candidate: *candidate, size, before: before.get(&candidate.id).cloned().unwrap_or(0..0) };
        let place = if number < survivors { number } else { best_place(&planned, size) };
        planned.insert(place, block);
    }
    let mut start = 0;
    planned.iter().map(|block| block.place(&mut start)).collect()
}

/// A block with its size, and its member's previous block.
struct PlannedBlock {
    candidate: Candidate,
    size: usize,
    before: Range<usize>,
}

impl PlannedBlock {
    fn place(&self, start: &mut usize) -> Block {
        let replicas = *start..*start + self.size;
        *start = replicas.end;
        Block { id: self.candidate.id, devices: self.candidate.devices, replicas }
    }

    /// How many replicas stay on this member if its block begins at `start`.
    fn kept(&self, start: usize) -> i64 {
        let (from, to) = (start.max(self.before.start), (start + self.size).min(self.before.end));
        to.saturating_sub(from) as i64
    }
}

/// Shares by the speeds of the candidates, or else proportional to their devices.
fn shares(world: usize, candidates: &[Candidate]) -> Vec<usize> {
    let speed = |candidate: &Candidate| Speed { devices: candidate.devices, nanoseconds: candidate.nanoseconds };
    let even = by_devices(world, candidates);
    by_speed(world, &candidates.iter().map(speed).collect::<Vec<_>>(), &even).unwrap_or(even)
}

/// Shares proportional to the devices by largest remainder, ties to the earlier. There are no more devices than
/// replicas, so each share is at least the number of its devices.
fn by_devices(world: usize, candidates: &[Candidate]) -> Vec<usize> {
    let devices: u128 = candidates.iter().map(|candidate| candidate.devices as u128).sum();
    let exact = |candidate: &Candidate| world as u128 * candidate.devices as u128;
    let mut shares: Vec<_> = candidates.iter().map(|candidate| (exact(candidate) / devices) as usize).collect();
    let left = world.saturating_sub(shares.iter().sum());
    let mut order: Vec<_> = (0..candidates.len()).collect();
    order.sort_by_key(|&index| Reverse(exact(&candidates[index]) % devices));
    order.iter().take(left).for_each(|&index| shares[index] += 1);
    shares
}

/// The position at which a block of `size` replicas moves the fewest replicas to another member; never the first one.
fn best_place(planned: &[PlannedBlock], size: usize) -> usize {
    let mut start: usize = planned.iter().map(|block| block.size).sum();
    let (mut gain, mut best) = (0, (0, planned.len()));
    for (place, block) in planned.iter().enumerate().skip(1).rev() {
        start -= block.size;
        gain += block.kept(start + size) - block.kept(start);
        if gain > best.0 {
            best = (gain, place);
        }
    }
    best.1
}
