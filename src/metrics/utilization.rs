//! Properties and utilization of NVIDIA's devices, from NVML.
//!
//! The library is loaded when a run starts; without it there are no numbers and no error. NVML lists all devices in PCI
//! order; CUDA lists the devices of `CUDA_VISIBLE_DEVICES`, in PCI order only if `CUDA_DEVICE_ORDER` says so. A device
//! that cannot be matched has no numbers.

use std::fmt::{Display, Formatter};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// The variable that sets CUDA's order of devices.
pub const ORDER: &str = "CUDA_DEVICE_ORDER";
/// Its value for NVML's order; CUDA's default is the fastest device first.
pub const BY_BUS: &str = "PCI_BUS_ID";

/// The devices of a run.
#[derive(Debug)]
pub struct Utilization {
    nvml: Nvml,
    /// The run's index and NVML's index of each device.
    devices: Vec<(usize, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// The run's index of the device.
    pub device: usize,
    /// Utilization over NVML's last sampling period, in percent.
    pub percent: f64,
    /// Memory in use by all processes, in bytes.
    pub memory: f64,
}

/// A device as described by its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    name: String,
    /// Total memory, in bytes.
    pub(crate) memory: u64,
    capability: (i32, i32),
    driver: String,
    /// The newest version of CUDA that the driver supports.
    cuda: (i32, i32),
}

impl Card {
    /// The visible device of this index; `None` without NVML.
    pub fn of(device: usize) -> Option<Self> {
        let Utilization { nvml, devices } = Utilization::of(&[device])?;
        Self::read(&nvml, devices.first()?.1).ok()
    }

    fn read(nvml: &Nvml, index: u32) -> Result<Self, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let capability = device.cuda_compute_capability()?;
        let cuda = nvml.sys_cuda_driver_version()?;
        Ok(Self {
            name: device.name()?,
            memory: device.memory_info()?.total,
            capability: (capability.major, capability.minor),
            driver: nvml.sys_driver_version()?,
            cuda: (cuda / 1000, cuda % 1000 / 10),
        })
    }

    /// The types with less precision than f32 that it computes in, from the CUDA C++ programming guide.
    fn types(&self) -> &'static str {
        match self.capability {
            (8.., _) => "computes in bf16, f16 and TF32",
            (6.., _) | (5, 3..) => "computes in f16, not in bf16 or TF32",
            _ => "computes in f32 alone",
        }
    }
}

impl Display for Card {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { name, capability, driver, cuda, .. } = self;
        let memory = self.memory as f64 / (1u64 << 30) as f64;
        let [capability, cuda] = [capability, cuda].map(|(major, minor)| format!("{major}.{minor}"));
        let types = self.types();
        write!(f, "{name}, {memory:.1} GiB, compute capability {capability}: {types}; driver {driver} for CUDA {cuda}")
    }
}

impl Utilization {
    /// The visible devices of these indices; `None` without NVML.
    pub fn of(devices: &[usize]) -> Option<Self> {
        let nvml = Nvml::init().ok()?;
        let uuid = |index: u32| nvml.device_by_index(index).and_then(|device| device.uuid()).unwrap_or_default();
        let uuids: Vec<String> = (0..nvml.device_count().ok()?).map(uuid).collect();
        let [visible, order] = ["CUDA_VISIBLE_DEVICES", ORDER].map(|name| std::env::var(name).ok());
        let find = |device: &usize| index(*device, visible.as_deref(), order.as_deref(), &uuids);
        let devices = devices.iter().map(|device| Some((*device, find(device)? as u32))).collect::<Option<_>>()?;
        Some(Self { nvml, devices })
    }

    /// Their current loads, without devices that do not report one.
    pub fn look(&self) -> Vec<Load> {
        let load = |(device, index): &(usize, u32)| {
            let found = self.nvml.device_by_index(*index).ok()?;
            let percent = f64::from(found.utilization_rates().ok()?.gpu);
            Some(Load { device: *device, percent, memory: found.memory_info().ok()?.used as f64 })
        };
        self.devices.iter().filter_map(load).collect()
    }
}

/// NVML's index of the visible device `device`; `uuids` lists all devices in NVML's order.
///
/// An entry of `CUDA_VISIBLE_DEVICES` is an index in CUDA's order or a unique prefix of a UUID.
pub fn index(device: usize, visible: Option<&str>, order: Option<&str>, uuids: &[String]) -> Option<usize> {
    let by_number = |number: usize| {
        let is_same_order = order == Some(BY_BUS) || uuids.len() == 1;
        (is_same_order && number < uuids.len()).then_some(number)
    };
    let Some(list) = visible else { return by_number(device) };
    let entry = list.split(',').nth(device)?.trim();
    if let Ok(number) = entry.parse() {
        return by_number(number);
    }
    let mut found = uuids.iter().enumerate().filter(|(_, uuid)| !entry.is_empty() && uuid.starts_with(entry));
    found.next().filter(|_| found.next().is_none()).map(|(index, _)| index)
}
