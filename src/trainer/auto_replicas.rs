//! How many replicas each device hosts for `--replicas-per-device auto`: faster devices get more, so that all are done
//! at about the same time.

use std::sync::Arc;

use kiln_engine::parallel::{Plan, Times, World};
use kiln_membership::{Speed, by_speed};
use kiln_system::{Error, Result};
use kiln_training::Network;

use super::prepare::Prepared;
use super::terminal::say;
use crate::config::{Config, ReplicasPerDevice};
use crate::launch::FixedMembership;

/// Times a micro-batch on the devices of all processes and places the replicas of `prepared` by the times. A process of
/// an elastic run times its own devices; its share is known when it takes part.
pub(super) fn choose(
    config: &Config,
    prepared: &mut Prepared,
    membership: &dyn FixedMembership,
    network: &dyn Network,
) -> Result<()> {
    let (world, is_elastic) = (prepared.plan.world.clone(), config.parallel.elastic.is_on());
    let has_choice = is_elastic || world.processes() > 1 || world.devices.len() > 1;
    if config.parallel.replicas_per_device != ReplicasPerDevice::Auto || !has_choice {
        return Ok(());
    }
    if world.rank == 0 && config.run.progress.is_text() {
        say("timing      a replica on every device");
    }
    // Processes may share a processor or a device: all are timed at the same time.
    membership.agree("begin of the timing", &String::new)?;
    let timing = network.time_units(&prepared.task, &prepared.plan, &world.devices)?;
    let of_device = |units: &Vec<Times>| units.iter().map(|unit| unit.forward + unit.backward).sum::<f64>();
    let own: Vec<u64> = timing.times.iter().map(|units| (of_device(units) * 1e9) as u64).collect();
    if is_elastic {
        prepared.nanoseconds = own.into_iter().max();
        let milliseconds = prepared.nanoseconds.unwrap_or_default() as f64 / 1e6;
        let words = format!("placed by the times of the members; one takes {milliseconds:.1} ms here");
        prepared.placement = Some(("replicas", words));
        return Ok(());
    }
    let own = own.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let read = |text: &String| text.split(',').map(str::parse).collect::<std::result::Result<Vec<u64>, _>>();
    let all =
        membership.gather("times of a replica", own)?.iter().map(read).collect::<std::result::Result<Vec<_>, _>>();
    let all =
        all.map_err(|reason| Error::Training(format!("the times of a process are damaged: {reason}; start again")))?;
    let (processes, times): (Vec<usize>, Vec<u64>) = (all.iter().map(Vec::len).collect(), all.concat());
    let speeds: Vec<Speed> = times.iter().map(|time| Speed { devices: 1, nanoseconds: *time }).collect();
    let even = World::counts(world.size, times.len());
    let end = |counts: &[usize]| counts.iter().zip(&speeds).map(|(count, speed)| speed.end(*count)).max().unwrap_or(1);
    let chosen = by_speed(world.size, &speeds, &even);
    let gain = chosen.as_ref().map_or(1.0, |chosen| end(&even) as f64 / end(chosen) as f64);
    let why = if gain > 1.0 { format!("{gain:.2} times as fast as even shares") } else { "even shares".into() };
    let counts = chosen.unwrap_or(even);
    let list = |numbers: Vec<String>| numbers.join(", ");
    let words = format!(
        "{} on devices that take {} ms for one; predicted: {why}",
        list(counts.iter().map(usize::to_string).collect()),
        list(times.iter().map(|time| format!("{:.1}", *time as f64 / 1e6)).collect()),
    );
    prepared.placement = Some(("replicas", words));
    let world = World::counted(1, world.rank, &processes, world.devices, &counts);
    prepared.plan = Arc::new(Plan { world, ..prepared.plan.as_ref().clone() });
    Ok(())
}
