//! How many replicas hosts of unequal speed get.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Even shares stay unless others are predicted to take at most this percentage of their time: timings scatter.
const WORTH: u128 = 95;

/// The devices of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speed {
    pub devices: usize,
    /// What a replica takes on one of them while the others work; 0 if that is not known.
    pub nanoseconds: u64,
}

impl Speed {
    /// When the slowest of its devices is done with its part of `replicas`, in nanoseconds.
    pub fn end(self, replicas: usize) -> u128 {
        replicas.div_ceil(self.devices.max(1)) as u128 * u128::from(self.nanoseconds)
    }
}

/// The replicas of each process with which the last device is done first; each device has at least one. `None` if a
/// speed is not known, or the `even` shares take about as long. There are no more devices than replicas; of processes
/// that would end at the same time, the one with fewer replicas gets the next: it needs less memory.
pub fn by_speed(replicas: usize, all: &[Speed], even: &[usize]) -> Option<Vec<usize>> {
    if all.iter().any(|speed| speed.nanoseconds == 0) {
        return None;
    }
    let mut shares: Vec<usize> = all.iter().map(|speed| speed.devices).collect();
    let with_another =
        |shares: &[usize], place: usize| Reverse((all[place].end(shares[place] + 1), shares[place], place));
    let mut next: BinaryHeap<_> = (0..all.len()).map(|place| with_another(&shares, place)).collect();
    for _ in shares.iter().sum()..replicas {
        let Reverse((.., place)) = next.pop()?;
        shares[place] += 1;
        next.push(with_another(&shares, place));
    }
    let end = |shares: &[usize]| shares.iter().zip(all).map(|(share, speed)| speed.end(*share)).max();
    (end(&shares)? * 100 <= end(even)? * WORTH).then_some(shares)
}
