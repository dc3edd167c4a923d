//! Where the replicas and stages of a training go: measures the devices for the planner, and takes its choice for
//! `--stages auto`.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln_engine::parallel::{Plan, Timing, World};
use kiln_system::{Error, Result};
use kiln_training::{Backend, Network};
use serde::{Deserialize, Serialize};

use super::prepare::Prepared;
use super::resources::{memory_of_machine, units};
use super::terminal::say;
use crate::config::Config;
use crate::launch::FixedMembership;
use crate::metrics::Card;
use crate::metrics::line::count;
use crate::study::planning::{Experiment, Measured, Planning, Room, text};
use crate::study::rate;

/// Bytes per second of one Mbit/s.
const MEGABIT: f64 = 125_000.0;

#[derive(Serialize, Deserialize)]
struct DeviceReport {
    timing: Timing,
    /// The memory of each device in bytes, if it is known.
    memory: Vec<Option<f64>>,
    /// Bytes per second between two devices.
    link: f64,
}

/// The devices `ids` of this process and `network` on them. Where devices share a processor, they are timed once for
/// each of the `numbers` of workers that may work at the same time.
pub(super) fn measured(
    backend: &dyn Backend,
    config: &Config,
    prepared: &Prepared,
    network: &dyn Network,
    ids: &[usize],
    numbers: &[usize],
) -> Result<Measured> {
    let numbers = if backend.is_processor() { numbers } else { &[ids.len()] };
    let timed = |workers: &usize| {
        if config.run.progress.is_text() {
            say(&format!("timing      the units of the network on {}", count(*workers, "device")));
        }
        Ok((*workers, network.time_units(&prepared.task, &prepared.plan, &ids[..*workers])?))
    };
    let timings = numbers.iter().map(timed).collect::<Result<BTreeMap<usize, Timing>>>()?;
    let passed = timings.values().next().map(|timing| timing.passed.clone()).unwrap_or_default();
    Ok(Measured {
        units: units(config, prepared, network, &passed),
        devices: ids.len(),
        times: timings.into_iter().map(|(workers, timing)| (workers, timing.times)).collect(),
        in_processes: false,
        parts_update: backend.is_processor(),
        link: link(backend, config.parallel.link, ids[0])?,
        room: Room {
            each: memory(backend, ids).into_iter().map(|bytes| bytes.unwrap_or(f64::INFINITY)).collect(),
            all: memory_of_machine().filter(|_| backend.is_processor()).unwrap_or(f64::INFINITY),
        },
    })
}

/// Bytes per second between two devices: as given, or as a device and the host exchange them.
fn link(backend: &dyn Backend, given: f64, device: usize) -> Result<f64> {
    if given > 0.0 { Ok(given * MEGABIT) } else { backend.time_copy(device) }
}

/// The memory of each device; on a processor all share the machine's.
fn memory(backend: &dyn Backend, ids: &[usize]) -> Vec<Option<f64>> {
    let own = |id: &usize| if backend.is_processor() { None } else { Card::of(*id).map(|card| card.memory as f64) };
    ids.iter().map(own).collect()
}

/// Replaces `--stages auto` by what the planner chooses for these devices; all processes choose the same.
pub(super) fn choose(
    backend: &dyn Backend,
    config: &mut Config,
    prepared: &mut Prepared,
    membership: &dyn FixedMembership,
    network: &dyn Network,
) -> Result<()> {
    if !config.parallel.plans_stages() {
        return Ok(());
    }
    let world = prepared.plan.world.clone();
    if world.stages == 1 {
        config.parallel.stages = 1;
        let words = "1 of each replica, as every device has a replica already";
        prepared.placement = Some(("stages", words.into()));
        return Ok(());
    }
    let is_alone = world.processes() == 1;
    let measured = if is_alone {
        let most = world.devices.len() / world.size;
        let numbers: Vec<usize> = (1..=most).map(|stages| stages * world.size).collect();
        measured(backend, config, prepared, network, &world.devices, &numbers)?
    } else {
        of_all(backend, config, prepared, membership, network)?
    };
    let experiment = Experiment {
        batch_size: prepared.plan.batch_size,
        micro_batches: world.size * config.run.accumulation_steps,
        replicas: Some(world.size),
        uses_all: !is_alone,
    };
    let planning = Planning::new(&measured, experiment)?;
    let chosen = &planning.choice().layout;
    membership.agree("stages", &|| text::flags(chosen).join(" "))?;
    let parallel = &mut config.parallel;
    (parallel.stages, parallel.split_points, parallel.link) = (chosen.cut.len(), chosen.split_points(), 0.0);
    let world = if is_alone {
        parallel.gpu_ids.truncate(chosen.devices());
        World::staged([world.size, parallel.stages], 0, vec![chosen.devices()], parallel.gpu_ids.clone())
    } else {
        world
    };
    let split_points = parallel.split_points.clone();
    prepared.plan = Arc::new(Plan { world, split_points, ..prepared.plan.as_ref().clone() });
    let idle = match measured.devices - chosen.devices() {
        0 => String::new(),
        idle => format!(", {} idle", count(idle, "device")),
    };
    let words = format!(
        "{} of units {}{idle}; {} images/s predicted; {}",
        chosen.cut.len(),
        text::units(chosen),
        rate(planning.choice().images_per_second),
        text::reason(&planning)
    );
    prepared.placement = Some(("stages", words));
    Ok(())
}

/// The devices of all processes; all processes measure their own at the same time.
fn of_all(
    backend: &dyn Backend,
    config: &Config,
    prepared: &Prepared,
    membership: &dyn FixedMembership,
    network: &dyn Network,
) -> Result<Measured> {
    let world = &prepared.plan.world;
    let ids = &world.devices;
    let timing = network.time_units(&prepared.task, &prepared.plan, ids)?;
    let share = (membership.local_processes() * ids.len()) as f64;
    let of_machine = || memory_of_machine().map(|bytes| bytes / share);
    let memory =
        memory(backend, ids).into_iter().map(|bytes| bytes.or_else(|| of_machine().filter(|_| backend.is_processor())));
    let own = DeviceReport { timing, memory: memory.collect(), link: link(backend, config.parallel.link, ids[0])? };
    let own = serde_json::to_string(&own).expect("numbers have a JSON form");
    let read = |(rank, text): (usize, String)| {
        let damaged =
            |reason| Error::Training(format!("the timings of rank {rank} are damaged: {reason}; start again"));
        serde_json::from_str::<DeviceReport>(&text).map_err(damaged)
    };
    let all = membership.gather("times", own)?.into_iter().enumerate().map(read).collect::<Result<Vec<_>>>()?;
    let times: Vec<_> = all.iter().flat_map(|report| report.timing.times.clone()).collect();
    Ok(Measured {
        units: units(config, prepared, network, &all[0].timing.passed),
        devices: times.len(),
        times: [(times.len(), times)].into(),
        in_processes: world.blocks.iter().all(|block| block.len() == 1),
        parts_update: false,
        link: all.iter().map(|report| report.link).fold(f64::INFINITY, f64::min),
        room: Room {
            each: all.iter().flat_map(|report| &report.memory).map(|it| it.unwrap_or(f64::INFINITY)).collect(),
            all: f64::INFINITY,
        },
    })
}
