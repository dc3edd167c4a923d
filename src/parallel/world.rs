//! The topology of an experiment: how many replicas it has, and which device hosts which of them.
//!
//! The world size belongs to the experiment, the devices to the machine. The same world on other devices is the same
//! experiment: same samples, same steps, same numbers.

use std::ops::Range;

/// Replicas and the devices of this process. Immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    size: usize,
    devices: Vec<usize>,
}

impl World {
    /// `size` replicas on the devices with these indices, in aligned blocks. The configuration has checked that there
    /// is at least one device, none twice, and no more than replicas.
    pub fn new(size: usize, devices: Vec<usize>) -> Self {
        Self { size, devices }
    }

    /// How many replicas the experiment has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Device indices, as given by `--gpu-ids`.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// The index of the device that hosts `replica`.
    pub fn device_of(&self, replica: usize) -> usize {
        self.devices[replica * self.devices.len() / self.size]
    }

    /// The replicas on the device at `slot` of [`World::devices`].
    pub fn replicas_on(&self, slot: usize) -> Range<usize> {
        let first = |slot: usize| (slot * self.size).div_ceil(self.devices.len());
        first(slot)..first(slot + 1)
    }
}
