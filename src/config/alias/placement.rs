//! Numbers of devices and machines, as other trainers give them.

use super::super::flag::setting;
use super::Line;

/// Devices of a machine: a count, or their indices.
pub(super) const DEVICES: &str = "trainer.devices";
/// The same in Lightning's first versions.
pub(super) const GPUS: &str = "trainer.gpus";
pub(super) const NODES: &str = "trainer.num_nodes";
/// The same in Lightning's first versions.
pub(super) const LEGACY_NODES: &str = "trainer.nb_gpu_nodes";

const COUNT: &str = "a whole number, 1 to 1024";

fn count(value: &str) -> Option<usize> {
    value.trim().parse().ok().filter(|count| (1..=1024).contains(count))
}

pub(super) fn devices_per_machine(value: &str, line: &Line) -> super::Read {
    let devices = devices(value).ok_or((COUNT, "or name devices, as in --gpu-ids 0,1".into()))?;
    Ok(placed(&devices, machines_of(line)))
}

fn machines_of(line: &Line) -> usize {
    [NODES, LEGACY_NODES].iter().find_map(|name| line.value(name)).and_then(count).unwrap_or(1)
}

pub(super) fn machines(value: &str, line: &Line) -> super::Read {
    let machines = count(value).ok_or((COUNT, "use --nnodes 2".into()))?;
    let has_devices = [DEVICES, GPUS].iter().any(|name| line.value(name).is_some());
    let mut settings = if has_devices { Vec::new() } else { placed(&[0], machines) };
    settings.push(("parallel.nnodes", machines.to_string()));
    Ok(settings)
}

pub(super) fn gpus(value: &str, line: &Line) -> super::Read {
    let devices = devices(value).filter(|devices| devices.iter().all(|device| *device >= 0));
    match devices {
        Some(devices) => Ok(placed(&devices, machines_of(line))),
        None if value.trim() == "0" => Ok(vec![("parallel.backend", "flex".into())]),
        None => Err(("a number of devices, or their indices", format!("use {}", setting("parallel.gpu_ids", "0,1")))),
    }
}

/// Device indices, from a count or a list of indices, behind whose last one a comma may stand, as in `0,`.
fn devices(text: &str) -> Option<Vec<i64>> {
    let list = text.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(indices) = list.or(text.contains(',').then_some(text)) {
        let indices = indices.trim_end().strip_suffix(',').unwrap_or(indices);
        return indices.split(',').map(|index| index.trim().parse().ok()).collect();
    }
    text.trim().parse().ok().filter(|count| (1..=1024).contains(count)).map(|count| (0..count).collect())
}

/// Settings for one replica on each of these devices of each of `machines` machines.
fn placed(devices: &[i64], machines: usize) -> Vec<(&'static str, String)> {
    let indices: Vec<_> = devices.iter().map(ToString::to_string).collect();
    vec![
        ("parallel.world_size", (devices.len() * machines).to_string()),
        ("parallel.gpu_ids", format!("[{}]", indices.join(","))),
    ]
}
