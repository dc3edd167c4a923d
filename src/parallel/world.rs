//! The topology of an experiment: how many replicas it has, and which process and device host which of them.
//!
//! The world size belongs to the experiment, the devices to the machine. The same world on other devices is the same
//! experiment: same samples, same steps, same numbers.

use std::ops::Range;

/// Replicas, the processes that host them, and the devices of this one. Immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    size: usize,
    /// Devices of each process.
    processes: Vec<usize>,
    /// This process among them.
    rank: usize,
    /// The devices of this process.
    devices: Vec<usize>,
}

impl World {
    /// `size` replicas on the devices with these indices, in aligned blocks. The configuration has checked that there
    /// is at least one device, none twice, and no more than replicas.
    pub fn new(size: usize, devices: Vec<usize>) -> Self {
        Self::across(size, 0, vec![devices.len()], devices)
    }

    /// `size` replicas over processes with so many devices each, numbered by process and device; `devices` are those
    /// of process `rank`, which is this one. There are no more devices than replicas.
    pub fn across(size: usize, rank: usize, processes: Vec<usize>, devices: Vec<usize>) -> Self {
        Self { size, processes, rank, devices }
    }

    /// How many replicas the experiment has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many processes host them.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// This process, from 0. The first one writes what a run leaves.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Device indices of this process, as given by `--gpu-ids`.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// The replicas of this process.
    pub fn hosted(&self) -> Range<usize> {
        self.hosted_by(self.rank)
    }

    /// The replicas of a process.
    pub fn hosted_by(&self, process: usize) -> Range<usize> {
        let before: usize = self.processes[..process].iter().sum();
        self.first_on(before)..self.first_on(before + self.processes[process])
    }

    /// The index of the device of this process that hosts `replica`, one of [`World::hosted`].
    pub fn device_of(&self, replica: usize) -> usize {
        let slot = (0..self.devices.len()).find(|slot| self.replicas_on(*slot).contains(&replica));
        self.devices[slot.expect("a replica is placed by the process that hosts it")]
    }

    /// The replicas on the device at `slot` of [`World::devices`].
    pub fn replicas_on(&self, slot: usize) -> Range<usize> {
        let slot = self.processes[..self.rank].iter().sum::<usize>() + slot;
        self.first_on(slot)..self.first_on(slot + 1)
    }

    /// The first replica on a device, counted over all processes.
    fn first_on(&self, slot: usize) -> usize {
        (slot * self.size).div_ceil(self.processes.iter().sum())
    }
}
