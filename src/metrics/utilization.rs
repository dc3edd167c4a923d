//! How busy NVIDIA's devices are, by their driver's own library (NVML), where there is one.
//!
//! The library is looked for when a run starts; a machine without it has no numbers and no complaint.

use nvml_wrapper::Nvml;

/// The devices of a run.
#[derive(Debug)]
pub struct Utilization {
    nvml: Nvml,
    /// The numbers of the run, and what NVML calls them.
    devices: Vec<(usize, Name)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Index(u32),
    Uuid(String),
}

/// One look at a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Its number among those of the run.
    pub device: usize,
    /// Share of the last moments in which it computed, in percent.
    pub percent: f64,
    /// Memory in use, by whomever, in bytes.
    pub memory: f64,
}

impl Utilization {
    /// The devices of these numbers among the visible ones; none without NVML.
    pub fn of(devices: &[usize]) -> Option<Self> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let named = devices.iter().map(|device| Some((*device, name(*device, visible.as_deref())?)));
        Some(Self { devices: named.collect::<Option<_>>()?, nvml: Nvml::init().ok()? })
    }

    /// How busy they are now; without those that do not say.
    pub fn look(&self) -> Vec<Load> {
        let load = |(device, name): &(usize, Name)| {
            let found = match name {
                Name::Index(index) => self.nvml.device_by_index(*index),
                Name::Uuid(uuid) => self.nvml.device_by_uuid(uuid.as_str()),
            };
            let found = found.ok()?;
            let percent = f64::from(found.utilization_rates().ok()?.gpu);
            Some(Load { device: *device, percent, memory: found.memory_info().ok()?.used as f64 })
        };
        self.devices.iter().filter_map(load).collect()
    }
}

/// What NVML, which sees all devices, calls the visible device of this number.
fn name(device: usize, visible: Option<&str>) -> Option<Name> {
    let Some(list) = visible.filter(|list| !list.is_empty()) else { return Some(Name::Index(device as u32)) };
    let entry = list.split(',').nth(device)?.trim();
    Some(entry.parse().map_or_else(|_| Name::Uuid(entry.into()), Name::Index))
}

#[cfg(test)]
mod tests {
    use super::{Name, name};

    #[test]
    fn devices_are_counted_among_the_visible_ones() {
        assert_eq!(name(1, None), Some(Name::Index(1)));
        assert_eq!(name(1, Some("3,5")), Some(Name::Index(5)));
        assert_eq!(name(0, Some("GPU-8932f937")), Some(Name::Uuid("GPU-8932f937".into())));
        assert_eq!(name(2, Some("3,5")), None);
    }
}
