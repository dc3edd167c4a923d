//! The topology of an experiment: the replicas, and the processes and devices that host them.
//!
//! The world size belongs to the experiment, the devices to the machine: the same world on other devices has the same
//! samples, steps and numbers. That holds for stages, too: with `stages` above 1 a replica's model is cut into that
//! many parts, and each part is a worker. Worker `stage * size + replica` is numbered so that the replicas of one
//! stage, which exchange gradients, are neighbours.

use std::ops::Range;

/// Replicas, the processes that host them, and the devices of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    pub size: usize,
    /// How many workers share the model of a replica. With one, the workers are the replicas.
    pub stages: usize,
    /// The workers of each process.
    pub blocks: Vec<Range<usize>>,
    /// This process, from 0. The first one writes the run's files.
    pub rank: usize,
    /// Device indices of this process, as given by `--gpu-ids`.
    pub devices: Vec<usize>,
    /// The workers on each of them.
    pub shares: Vec<Range<usize>>,
}

impl World {
    /// `size` replicas on the devices with these indices, in aligned blocks. The configuration has checked that there
    /// is at least one device, none twice, and no more than replicas.
    pub fn new(size: usize, devices: Vec<usize>) -> Self {
        Self::staged([size, 1], 0, vec![devices.len()], devices)
    }

    /// `size` replicas, the model of each cut into `stages`, over processes with `processes[i]` devices each; `devices`
    /// are those of this process, `rank`. There are no more devices than workers.
    pub fn staged([size, stages]: [usize; 2], rank: usize, processes: Vec<usize>, devices: Vec<usize>) -> Self {
        let counts = Self::counts(size * stages, processes.iter().sum());
        Self::counted(stages, rank, &processes, devices, &counts)
    }

    /// As [`World::staged`], with as many workers on each device of all processes, in order, as `counts` says.
    pub fn counted(stages: usize, rank: usize, processes: &[usize], devices: Vec<usize>, counts: &[usize]) -> Self {
        let first_on = |slot: usize| counts[..slot].iter().sum::<usize>();
        let before = |process: usize| processes[..process].iter().sum::<usize>();
        let block = |process| first_on(before(process))..first_on(before(process + 1));
        let share = |slot| first_on(before(rank) + slot)..first_on(before(rank) + slot + 1);
        let (blocks, shares) = ((0..processes.len()).map(block).collect(), (0..devices.len()).map(share).collect());
        Self { size: first_on(counts.len()) / stages, stages, blocks, rank, devices, shares }
    }

    /// The workers of each of so many devices, in aligned blocks.
    pub fn counts(workers: usize, devices: usize) -> Vec<usize> {
        let first_on = |slot: usize| (slot * workers).div_ceil(devices);
        (0..devices).map(|slot| first_on(slot + 1) - first_on(slot)).collect()
    }

    /// An explicit placement: `blocks` are the workers of each process, from 0 without a gap; `devices` are those of
    /// this process, `rank`, which has at least one worker per device.
    pub fn placed(stages: usize, rank: usize, blocks: Vec<Range<usize>>, devices: Vec<usize>) -> Self {
        let (own, count) = (blocks[rank].clone(), devices.len());
        let first_on = |slot: usize| own.start + (slot * own.len()).div_ceil(count);
        let shares = (0..count).map(|slot| first_on(slot)..first_on(slot + 1)).collect();
        let size = blocks.last().map_or(0, |block| block.end) / stages;
        Self { size, stages, blocks, rank, devices, shares }
    }

    pub fn processes(&self) -> usize {
        self.blocks.len()
    }

    /// The workers of this process.
    pub fn hosted(&self) -> Range<usize> {
        self.blocks[self.rank].clone()
    }

    /// The stages of which this process hosts workers.
    pub fn stages_here(&self) -> Range<usize> {
        let hosted = self.hosted();
        hosted.start / self.size..hosted.end.div_ceil(self.size)
    }

    /// Whether models are cut, and this process hosts workers of all stages.
    pub fn has_all_stages(&self) -> bool {
        self.stages > 1 && self.stages == self.stages_here().len()
    }

    /// The replicas of one stage that this process hosts: a world of the processes and devices that host it. `None` if
    /// this process is not one of them.
    pub fn of_stage(&self, stage: usize) -> Option<Self> {
        let all = stage * self.size..(stage + 1) * self.size;
        let part = |workers: &Range<usize>| {
            let part = workers.start.max(all.start)..workers.end.min(all.end);
            (!part.is_empty()).then(|| part.start - all.start..part.end - all.start)
        };
        part(&self.hosted())?;
        let members: Vec<usize> =
            (0..self.processes()).filter(|process| part(&self.blocks[*process]).is_some()).collect();
        let (devices, shares) =
            self.devices.iter().zip(&self.shares).filter_map(|(id, share)| Some((*id, part(share)?))).unzip();
        Some(Self {
            size: self.size,
            stages: 1,
            blocks: members.iter().filter_map(|process| part(&self.blocks[*process])).collect(),
            rank: members.iter().position(|process| *process == self.rank)?,
            devices,
            shares,
        })
    }

    /// The index of the device of this process that hosts `worker`, one of [`World::hosted`].
    pub fn device_of(&self, worker: usize) -> usize {
        self.devices[self.slot_of(worker)]
    }

    /// The index of that device in `devices`.
    pub fn slot_of(&self, worker: usize) -> usize {
        let slot = self.shares.iter().position(|share| share.contains(&worker));
        slot.expect("a worker is placed by the process that hosts it")
    }
}
