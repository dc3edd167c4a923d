//! The topology of an experiment: the replicas, and the processes and devices that host them.
//!
//! The world size belongs to the experiment, the devices to the machine: the same world on other devices has the same
//! samples, steps and numbers.

use std::ops::Range;

/// Replicas, the processes that host them, and the devices of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// How many replicas the experiment has.
    pub size: usize,
    /// The replicas of each process.
    pub blocks: Vec<Range<usize>>,
    /// This process, from 0. The first one writes the run's files.
    pub rank: usize,
    /// Device indices of this process, as given by `--gpu-ids`.
    pub devices: Vec<usize>,
    /// The replicas on each of them.
    pub shares: Vec<Range<usize>>,
}

impl World {
    /// `size` replicas on the devices with these indices, in aligned blocks. The configuration has checked that there
    /// is at least one device, none twice, and no more than replicas.
    pub fn new(size: usize, devices: Vec<usize>) -> Self {
        Self::across(size, 0, vec![devices.len()], devices)
    }

    /// `size` replicas over processes with `processes[i]` devices each; `devices` are those of this process, `rank`.
    /// There are no more devices than replicas.
    pub fn across(size: usize, rank: usize, processes: Vec<usize>, devices: Vec<usize>) -> Self {
        let all: usize = processes.iter().sum();
        let first_on = |slot: usize| (slot * size).div_ceil(all);
        let before = |process: usize| processes[..process].iter().sum::<usize>();
        let block = |process| first_on(before(process))..first_on(before(process + 1));
        let share = |slot| first_on(before(rank) + slot)..first_on(before(rank) + slot + 1);
        let (blocks, shares) = ((0..processes.len()).map(block).collect(), (0..devices.len()).map(share).collect());
        Self { size, blocks, rank, devices, shares }
    }

    /// An explicit placement: `blocks` are the replicas of each process, from 0 without a gap; `devices` are those of
    /// this process, `rank`, which has at least one replica per device.
    pub fn placed(rank: usize, blocks: Vec<Range<usize>>, devices: Vec<usize>) -> Self {
        let (own, count) = (blocks[rank].clone(), devices.len());
        let first_on = |slot: usize| own.start + (slot * own.len()).div_ceil(count);
        let shares = (0..count).map(|slot| first_on(slot)..first_on(slot + 1)).collect();
        Self { size: blocks.last().map_or(0, |block| block.end), blocks, rank, devices, shares }
    }

    /// How many processes host them.
    pub fn processes(&self) -> usize {
        self.blocks.len()
    }

    /// The replicas of this process.
    pub fn hosted(&self) -> Range<usize> {
        self.blocks[self.rank].clone()
    }

    /// The index of the device of this process that hosts `replica`, one of [`World::hosted`].
    pub fn device_of(&self, replica: usize) -> usize {
        self.devices[self.slot_of(replica)]
    }

    /// The index of that device in `devices`.
    pub fn slot_of(&self, replica: usize) -> usize {
        let slot = self.shares.iter().position(|share| share.contains(&replica));
        slot.expect("a replica is placed by the process that hosts it")
    }
}
