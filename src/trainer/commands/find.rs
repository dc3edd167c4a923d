//! `train find`: a learning rate by a range test, a batch size by trials.

use std::ffi::OsString;
use std::path::Path;

use kiln_system::{Error, Result, shown};
use kiln_training::backend;
use sysinfo::System;

use super::measured_run::{MeasuredRun, about, refuse};
use crate::config::{Request, resolve};
use crate::study::finding::{Analysis, Bounds, Outcome, Probe, RangeTest, Trial, next};
use crate::trainer::phases::listen;
use crate::trainer::terminal::say;

/// Steps of a trial; the first one does not count for its speed.
const TRIAL: usize = 4;

fn create(output: &Path) -> Result<()> {
    std::fs::create_dir_all(output).map_err(Error::io("create", output))
}

/// A range test of `steps` steps, with rates of all replicas together from the lowest to the highest.
pub fn find_learning_rate(
    [from, to]: [f64; 2],
    steps: usize,
    arguments: &[OsString],
    request: &Request,
    output: &Path,
) -> Result<u8> {
    listen(false);
    let own = ["optim.learning_rate", "schedule.kind", "schedule.final_lr", "run.limit_train_batches"];
    refuse(request, "find lr", &own)?;
    let config = resolve(request)?.config;
    // Created before the measurement, so that an error comes first.
    create(output)?;
    let accumulated = config.run.accumulation_steps;
    let own = vec![
        "--schedule=exponential".to_string(),
        "--lr-scaling=none".into(),
        format!("--learning-rate={from}"),
        format!("schedule.final_lr={to}"),
        // One step per epoch, so that the schedule is as long as the test for any data set.
        format!("--limit-train-batches={accumulated}"),
    ];
    let run = MeasuredRun::run(arguments, own, 1, steps, false)?;
    // A run that diverges ends with an error, which the test expects.
    let records = run.steps().unwrap_or_default();
    if records.is_empty() {
        return Err(run.failure("the range test"));
    }
    let mut probes: Vec<_> = records.iter().map(|step| Probe { rate: step.lr, loss: step.loss }).collect();
    if run.ended.code != 0 {
        let next = from * (to / from).powf(probes.len() as f64 / steps as f64);
        probes.push(Probe { rate: next, loss: f64::NAN });
    }
    let world = config.parallel.world_size;
    let growth = config.schedule.growth(world, accumulated);
    let test = RangeTest::new(&probes, growth)?;
    test.write(output, &about(&config)?)?;
    say(&test.to_string());
    say(&format!("files       find-lr.csv|json|svg in {}", shown(output)));
    Ok(u8::from(test.verdict.is_err()))
}

/// Trials of batch sizes of a replica up to `largest`.
pub fn find_batch_size(largest: usize, arguments: &[OsString], request: &Request, output: &Path) -> Result<u8> {
    listen(false);
    refuse(request, "find batch-size", &["parallel.batch_size"])?;
    let config = resolve(request)?.config;
    create(output)?;
    // On a GPU a size that does not fit fails; the memory of this machine must not be filled.
    let is_shared = backend(config.parallel.backend)?.is_processor();
    let memory = is_shared.then(|| {
        let mut system = System::new();
        system.refresh_memory();
        system.available_memory()
    });
    let bounds = Bounds { largest, memory, ..Bounds::default() };
    let mut trials = Vec::new();
    while let Some(batch_size) = next(&trials, &bounds) {
        let run = MeasuredRun::run(arguments, vec![format!("--batch-size={batch_size}")], 1, TRIAL, false)?;
        let outcome = match run.ended.code {
            0 => Outcome::Fits { images_per_second: run.rate()?, memory_bytes: run.memory() },
            _ if batch_size == bounds.start => return Err(run.failure(&format!("a batch size of {batch_size}"))),
            _ => Outcome::TooLarge { why: run.ended.why() },
        };
        say(&match &outcome {
            Outcome::Fits { images_per_second, .. } => {
                format!("tried       batch size {batch_size}: {images_per_second:.1} images/s")
            }
            Outcome::TooLarge { why } => format!("tried       batch size {batch_size}: too large ({why})"),
        });
        trials.push(Trial { batch_size, outcome });
    }
    let analysis = Analysis::new(trials, memory)?;
    analysis.write(output, &about(&config)?)?;
    say(&format!("\n{analysis}"));
    say(&format!("files       find-batch-size.csv|json|svg in {}", shown(output)));
    Ok(0)
}
