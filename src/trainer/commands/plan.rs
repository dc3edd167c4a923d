//! `train plan`: the fastest placement of a training, by measured times of the parts of its network.

use std::ffi::OsString;

use kiln_system::stop::Stop;
use kiln_system::{Error, Result};
use kiln_training::backend;

use super::measured_run::{MeasuredRun, median, refuse};
use crate::config::ParallelConfig;
use crate::config::{Config, Request, Setting, resolve};
use crate::launch::alone;
use crate::study::planning::{Experiment, Forecast, Planning, text};
use crate::study::{aligned, rate};
use crate::trainer::auto_stages::measured;
use crate::trainer::initial::initial_model;
use crate::trainer::phases::listen;
use crate::trainer::prepare::prepare;
use crate::trainer::pretrained::with_weights;
use crate::trainer::terminal::say;

/// How many placements `--run` measures.
const BEST: usize = 3;
/// Steps before those that are measured.
const WARMUP: usize = 3;
const STEPS: usize = 10;

/// Compares the placements of trainings by `arguments`, which resolve to `request`, in `processes` processes with a
/// device each, or in one with all devices; with `run`, trains the best for some steps. Returns the exit code.
pub fn plan(processes: usize, run: bool, arguments: &[OsString], request: &Request) -> Result<u8> {
    listen(false);
    let several = processes > 1;
    let own = ["parallel.stages", "parallel.split_points", "parallel.replicas_per_device", "parallel.gpu_ids"];
    refuse(request, "plan", if several { &own } else { &own[..3] })?;
    let mut request = request.clone();
    let mut set = |key: &str, value: String, flag: &str| {
        request.flags.push(Setting { key: key.into(), value, place: flag.into() });
    };
    set("parallel.stages", "auto".into(), "--stages");
    if several {
        let ids: Vec<usize> = (0..processes).collect();
        set("parallel.gpu_ids", text::joined(&ids), "--gpu-ids");
    }
    let mut config = resolve(&with_weights(request))?.config;
    // Black images replace Parquet files that no run has converted yet.
    config.run.dry_run = true;
    if config.parallel.link > 0.0 && (run || !several) {
        return Err(Error::usage(
            "--link cannot be combined with --run or one process; use --nproc N without --run, or remove --link",
        ));
    }
    let planning = search(&config, several)?;
    say(&format!("\n{planning}"));
    notes(&config.parallel, &planning, several).iter().for_each(|note| say(&format!("note: {note}")));
    if run { compare(&planning, &config.parallel.gpu_ids, several, arguments) } else { Ok(0) }
}

/// What the numbers ignore, or what would change them.
fn notes(parallel: &ParallelConfig, planning: &Planning, several: bool) -> Vec<String> {
    let mut notes = vec!["the prediction ignores waits for synchronised batch-norm".to_string()];
    if several && parallel.link == 0.0 {
        notes.push("it assumes that processes exchange at memory speed; --run measures them".into());
    }
    let (devices, there) = (parallel.gpu_ids.len(), planning.experiment.micro_batches);
    if there < devices {
        notes.push(format!(
            "a step has {there} micro-batches for {devices} devices; --accumulation-steps {devices} allows more \
             placements"
        ));
    }
    notes
}

fn search(config: &Config, several: bool) -> Result<Planning> {
    let backend = backend(config.parallel.backend)?;
    let membership = alone(&config.parallel)?;
    let prepared = prepare(backend, config, membership.as_ref(), Stop::new())?;
    let (network, _) = initial_model(backend, config, &prepared)?;
    let (ids, replicas) = (&config.parallel.gpu_ids, config.parallel.world_size);
    let experiment = Experiment {
        batch_size: prepared.plan.batch_size,
        micro_batches: replicas * config.run.accumulation_steps,
        replicas: None,
        uses_all: false,
    };
    // With a link the processes are machines like this one, which need not share it.
    let apart = config.parallel.link > 0.0;
    let shapes = experiment.shapes(ids.len(), prepared.task.architecture.units().len());
    let mut numbers: Vec<usize> = shapes.iter().map(|[replicas, stages]| replicas * stages).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if apart {
        numbers = vec![1];
    }
    let timed = if apart { &ids[..1] } else { ids };
    let mut measured = measured(backend, config, &prepared, network.as_ref(), timed, &numbers)?;
    measured.in_processes = several;
    if apart {
        measured.devices = ids.len();
        let one = measured.times.remove(&1).and_then(|mut times| times.pop()).unwrap_or_default();
        measured.times = [(ids.len(), vec![one; ids.len()])].into();
        measured.room.each = vec![measured.room.each[0].min(measured.room.all); ids.len()];
        measured.room.all = f64::INFINITY;
    }
    Planning::new(&measured, experiment)
}

/// Trains the best placements for some steps, prints measurements and predictions, and chooses by the measurements.
fn compare(planning: &Planning, ids: &[usize], several: bool, arguments: &[OsString]) -> Result<u8> {
    let (mut rows, mut fastest) = (Vec::new(), None::<(f64, &Forecast)>);
    for row in planning.rows.iter().filter(|row| row.fits).take(BEST) {
        let devices = row.layout.devices();
        let mut own = text::flags(&row.layout);
        if !several {
            own.push(format!("--gpu-ids={}", text::joined(&ids[..devices])));
        }
        let processes = if several { devices } else { 1 };
        let run = MeasuredRun::run(arguments, own, processes, WARMUP + STEPS, false)?;
        if run.ended.code != 0 {
            return Err(run.failure(&text::name(&row.layout)));
        }
        let measured = images_per_second(&run, planning.experiment)?;
        if fastest.is_none_or(|(best, _)| measured > best) {
            fastest = Some((measured, row));
        }
        rows.push(cells(row, measured));
    }
    let head = ["replicas", "stages", "predicted images/s", "measured", "predicted / measured"];
    say(&format!("\nmeasured    medians of {STEPS} steps\n{}", aligned(&head, rows)));
    if let Some((measured, Forecast { layout, .. })) = fastest {
        let verdict = if *layout == planning.choice().layout { "as predicted" } else { "not the predicted one" };
        say(&format!("choice      {}, {} images/s measured, {verdict}", text::name(layout), rate(measured)));
        say(&format!("use         {}", text::spelled(layout)));
    }
    Ok(0)
}

fn images_per_second(run: &MeasuredRun, experiment: Experiment) -> Result<f64> {
    let seconds = run.steps()?.iter().skip(WARMUP).map(|step| step.step_seconds).collect();
    Ok((experiment.batch_size * experiment.micro_batches) as f64 / median(seconds).unwrap_or(f64::NAN))
}

fn cells(row: &Forecast, measured: f64) -> [String; 5] {
    let it = &row.layout;
    [
        text::replicas(it),
        it.cut.len().to_string(),
        rate(row.images_per_second),
        rate(measured),
        format!("{:.2}", row.images_per_second / measured),
    ]
}
