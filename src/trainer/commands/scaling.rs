//! `train scaling`: short measured runs of several sizes, and the analysis of them.

use std::ffi::OsString;

use kiln_system::{Error, Result, shown};
use kiln_training::backend;

use super::measured_run::{MeasuredRun, about, refuse};
use crate::config::{Request, resolve};
use crate::study::scaling::{Analysis, Measurement, Mode, Sizes};
use crate::trainer::phases::listen;
use crate::trainer::prepare::share_threads;
use crate::trainer::terminal::say;

/// Measures runs by `arguments`, which resolve to `request`, and writes the analysis; returns the exit code.
pub fn scaling(sizes: &Sizes, arguments: &[OsString], request: &Request) -> Result<u8> {
    listen(false);
    let own = ["parallel.world_size", "parallel.gpu_ids", "parallel.replicas_per_device", "run.threads"];
    refuse(request, "scaling", &own)?;
    let config = resolve(request)?.config;
    // Created before the measurements, so that an error comes first.
    std::fs::create_dir_all(&sizes.output).map_err(Error::io("create", &sizes.output))?;
    let devices = backend(config.parallel.backend)?.count_devices();
    let largest = sizes.replicas.iter().copied().max().unwrap_or(1);
    let cores = share_threads(0, 1);
    let threads = if sizes.threads > 0 { sizes.threads } else { (cores / largest).max(1) };
    let measure = |mode: Mode, replicas: usize, processes: usize| {
        let batch = batch(mode, config.parallel.batch_size, replicas, largest)?;
        let hosts = replicas.min(devices.unwrap_or(replicas));
        let ids: Vec<String> = (0..hosts).map(|device| device.to_string()).collect();
        let mut own = vec![format!("--world-size={replicas}"), format!("--batch-size={batch}")];
        // The threads are divided among processes.
        own.push(format!("--threads={}", (threads * replicas).div_ceil(processes)));
        if processes == 1 || devices.is_some() {
            own.push(format!("--gpu-ids={}", ids.join(",")));
        }
        let run = MeasuredRun::run(arguments, own, processes, sizes.warmup + sizes.steps, true)?;
        if run.ended.code != 0 {
            return Err(run.failure(&format!("the run with --world-size {replicas} and --nproc {processes}")));
        }
        let steps = run.steps()?;
        let measured = steps.get(sizes.warmup..).unwrap_or_default();
        Ok(Measurement {
            mode,
            replicas,
            processes,
            devices_shared: devices.map_or(threads * replicas > cores, |count| replicas > count),
            steps: measured.len(),
            step_seconds: measured.iter().map(|step| step.step_seconds).collect(),
            images_per_step: batch * replicas,
            exposed_communication: if replicas > 1 { run.waiting(sizes.warmup)? } else { 0.0 },
            memory_bytes: run.memory(),
        })
    };
    let mut measurements = Vec::new();
    for &mode in &sizes.modes {
        for &replicas in &sizes.replicas {
            for &processes in sizes.processes.iter().filter(|processes| **processes <= replicas) {
                let measured = measure(mode, replicas, processes)?;
                let rate = measured.images_per_second();
                say(&format!("measured    {}: {rate:.1} images/s", measured.name()));
                measurements.push(measured);
            }
        }
    }
    let mut about = about(&config)?;
    about.insert("threads of a replica".into(), threads.to_string());
    about.insert("measured steps".into(), format!("{} after {}", sizes.steps, sizes.warmup));
    let analysis = Analysis::new(measurements, about)?;
    analysis.write(&sizes.output)?;
    say(&format!("\n{analysis}"));
    say(&format!("files       scaling.csv|json|svg in {}", shown(&sizes.output)));
    Ok(0)
}

/// Images per replica and micro-batch.
fn batch(mode: Mode, own: usize, replicas: usize, largest: usize) -> Result<usize> {
    match mode {
        Mode::Weak => Ok(own),
        // The global batch of the largest size.
        Mode::Strong if (own * largest).is_multiple_of(replicas) => Ok(own * largest / replicas),
        Mode::Strong => Err(Error::usage(format!(
            "strong scaling splits {own} x {largest} images of a step over '{replicas}' replicas, which leaves a \
             remainder; use --replicas that divide it, or another --batch-size"
        ))),
    }
}
