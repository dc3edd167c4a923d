//! A training of fixed membership, from start to end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::backend::{Program, dispatch};
use super::clock::Clock;
use super::conclusion::{conclude, finish, nothing_left};
use super::initial::initial_model;
use super::learner;
use super::logs::{Kept, Logs, goal};
use super::origin::{Origin, continued, inspect};
use super::overview::overview;
use super::phases::{listen, report};
use super::prepare::{Prepared, prepare};
use super::recorder::{Recorder, RunTotals};
use super::resources::{cautions, slow_precision};
use super::resume::{other_rate, restore};
use super::snapshot::{Snapshots, check_copy};
use super::terminal::{display, say, warn};
use super::{elastic_run, placement, requeue, together};
use crate::checkpoint::{Loaded, Lock, write_atomic};
use crate::config::{Config, ProgressKind, Resolved, RunConfig};
use crate::error::{Error, Result, shown};
use crate::launch::environment::identify;
use crate::launch::{self, FixedMembership};
use crate::metrics::{Profiler, screen};
use crate::model::ResNet;
use crate::nn::state_dict;
use crate::ops::PrecisionKind;
use crate::parallel::nccl::{Transport, name_interface};
use crate::parallel::{BackendKind, DataParallel, HostBackend, Processes, StartingPoint};
use crate::state::sha256;
use crate::stop::{Heard, Reason, Stop};

/// Trains as configured and returns the exit code: 0, or that of the signal that ended the run.
pub fn train(resolved: Resolved) -> Result<u8> {
    let backend = resolved.config.parallel.backend;
    dispatch(backend, Training(resolved)).map_err(Error::of_training)
}

struct Training(Resolved);

impl Program for Training {
    type Output = u8;

    fn run<B: HostBackend>(self, backend: BackendKind) -> Result<u8> {
        let Resolved { mut config, mut notes } = self.0;
        requeue::prepare(&mut config)?;
        let first = config.parallel.rank == 0;
        let presence = Presence::of(&config);
        notes.extend(choose_precision::<B>(&mut config.run));
        if first {
            // Standard output is for programs then.
            let say = if config.run.progress == ProgressKind::Json { warn } else { say };
            notes.iter().for_each(|note| say(&format!("note: {note}")));
        } else {
            // Only the first process prints.
            config.run.progress = ProgressKind::None;
        }
        // SAFETY: this is before the first thread that reads the environment.
        unsafe { name_interface(&config.parallel) };
        let stop = stop(&config)?;
        let profiler = listen(config.run.profile);
        if config.parallel.elastic.is_on() {
            return elastic_run::train::<B>(config, backend, stop, profiler);
        }
        let membership = launch::join(&config.parallel, config.shared())?;
        presence.say("takes part; rank 0 shows the progress");
        let result = run::<B>(config, backend, membership.as_ref(), stop, profiler);
        if result.is_ok() {
            presence.say("done");
        }
        membership.leave(result.as_ref().err().map(Error::to_string).as_deref());
        result
    }
}

/// Takes f32 where a half type was wanted for its speed and is slow, and returns a note about that.
fn choose_precision<B: HostBackend>(run: &mut RunConfig) -> Option<String> {
    let slow = slow_precision::<B>(run.precision).filter(|_| run.half_if_fast)?;
    let name = run.precision.name();
    run.precision = PrecisionKind::F32;
    Some(format!("{slow}; the run takes f32, unless you give --precision {name} alone"))
}

/// A process that shows no progress of its own, on whose terminal there is no other.
struct Presence(Option<String>);

impl Presence {
    fn of(config: &Config) -> Self {
        let parallel = &config.parallel;
        let (rank, processes) = (parallel.rank, parallel.processes());
        let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        let environment: Vec<_> = std::env::vars_os().filter_map(text).collect();
        // The first one of a machine, if a launcher has started several.
        let local = identify(&environment).ok().flatten().and_then(|identity| Some(identity.local_rank?.value));
        let is_alone = rank > 0 && processes > 1 && local.is_none_or(|local| local == 0);
        Self((is_alone && config.run.progress.is_text()).then(|| format!("rank {rank} of {processes}")))
    }

    fn say(&self, what: &str) {
        self.0.iter().for_each(|name| say(&format!("{name:<10}  {what}")));
    }
}

/// The request to stop; from now on signals set it.
fn stop(config: &Config) -> Result<Stop> {
    let limit = config.run.max_time;
    let stop = if limit.is_zero() { Stop::new() } else { Stop::with_time_limit(limit) };
    let told = config.clone();
    let prints = told.parallel.rank == 0 && told.run.progress.is_text();
    let tell = move |heard| match heard {
        Heard::Early => requeue::submit(&told, false).unwrap_or_else(|error| warn(&error.to_string())),
        // A dashboard says so itself.
        Heard::First if prints && !screen::is_used() => {
            say("stopping    after this step, to save; Ctrl-C now ends the run at once")
        }
        Heard::Again if prints => warn("ended by a second Ctrl-C; steps since the last checkpoint are not saved"),
        Heard::First | Heard::Again => {}
    };
    stop.listen_to_signals(tell).map_err(Error::io("listen to signals of", Path::new("this process")))?;
    Ok(stop)
}

fn run<B: HostBackend>(
    mut config: Config,
    backend: BackendKind,
    membership: &dyn FixedMembership,
    stop: Stop,
    profiler: Option<Profiler>,
) -> Result<u8> {
    let display = display(config.run.progress)?;
    let mut prepared = prepare::<B>(&config, membership, stop.clone())?;
    prepared.transport = Transport::choose::<B>(&config.parallel, membership.world().processes() == 1)?;
    membership.agree("images", &|| prepared.fingerprint.clone())?;
    let (model, about) = initial_model::<B>(&config, &prepared)?;
    placement::choose::<B>(&mut config, &mut prepared, membership, &model)?;
    if config.parallel.rank == 0 {
        cautions::<B>(&config, &prepared, about.parameters, membership.local_processes())
            .iter()
            .for_each(|line| warn(line));
        check_copy(&config.checkpoint.path)?;
    }
    if config.run.dry_run {
        if config.parallel.rank == 0 {
            inspect(&config)?;
            let session = Session::new(&config, &prepared, continued(&config)?, model)?;
            Snapshots::new(&config, &prepared, Clock::default())?;
            say(&overview::<B>(&config, &prepared, backend, &about, None));
            session.announce();
        }
        return Ok(0);
    }
    let processes = membership.connect(&prepared.plan.world, config.run.deterministic, &prepared.transport)?;
    let origin = together::origin(&config, processes.as_ref())?;
    let text = overview::<B>(&config, &prepared, backend, &about, Some(&origin.directory));
    stop.begin();
    let session = Session::open(&config, &prepared, origin, model)?;
    membership.agree("weights", &|| sha256(&state_dict(&session.model)))?;
    if config.run.progress.is_text() {
        say(&text);
        session.announce();
    }
    session.run(prepared, stop, display, membership, processes, profiler)
}

/// A run with its directory claimed and its state restored.
struct Session<B: HostBackend> {
    config: Config,
    directory: PathBuf,
    model: ResNet<burn::backend::Autodiff<B>>,
    start: StartingPoint,
    seconds_before: f64,
    /// The position up to which the logs of earlier sessions are valid.
    kept: Kept,
    resumed_from: Option<PathBuf>,
    /// How the learning rate changes, if it does.
    rate: Option<String>,
    _lock: Option<Lock>,
}

impl<B: HostBackend> Session<B> {
    fn open(
        config: &Config,
        prepared: &Prepared,
        origin: Origin,
        model: ResNet<burn::backend::Autodiff<B>>,
    ) -> Result<Self> {
        let Origin { directory, checkpoint, lock, .. } = origin;
        let session = Self::new(config, prepared, checkpoint, model)?;
        if config.parallel.rank == 0 {
            write_atomic(&directory.join("config.toml"), config.to_toml().as_bytes())?;
        }
        Ok(Self { directory, _lock: lock, ..session })
    }

    /// A session without a directory, from `checkpoint` or from the beginning.
    fn new(
        config: &Config,
        prepared: &Prepared,
        checkpoint: Option<Loaded>,
        mut model: ResNet<burn::backend::Autodiff<B>>,
    ) -> Result<Self> {
        let (mut start, mut seconds_before, mut kept, mut rate) =
            (StartingPoint::default(), 0.0, Kept::default(), None);
        if let Some(checkpoint) = &checkpoint {
            let (training, state) = restore(config, prepared, checkpoint)?;
            rate = other_rate(checkpoint, &prepared.plan, training.position.global_step)?;
            (model, start) = StartingPoint::restore(model, &training, &shown(&checkpoint.path))?;
            let epoch_end = state.global_step - state.step_in_epoch.min(state.global_step);
            (seconds_before, kept) = (state.elapsed_seconds, Kept { step: state.global_step, epoch_end });
        }
        let (directory, resumed_from) = (PathBuf::new(), checkpoint.map(|checkpoint| checkpoint.path));
        let config = config.clone();
        Ok(Self { config, directory, model, start, seconds_before, kept, resumed_from, rate, _lock: None })
    }

    fn announce(&self) {
        if let Some(path) = &self.resumed_from {
            let position = &self.start.position;
            let steps = position.global_step;
            say(&format!("resuming    {} after step {steps}, in epoch {}", shown(path), position.epoch + 1));
        }
        self.rate.iter().for_each(|words| say(&format!("            {words}")));
    }

    fn run(
        self,
        prepared: Prepared,
        stop: Stop,
        display: ProgressKind,
        membership: &dyn FixedMembership,
        processes: Option<Processes>,
        profiler: Option<Profiler>,
    ) -> Result<u8> {
        let plan = prepared.plan.clone();
        let position = &self.start.position;
        if plan.is_complete(position) {
            if self.config.run.progress != ProgressKind::Json {
                say(&nothing_left(&plan, position));
            }
            if self.config.parallel.rank == 0 {
                let done = [position.epoch, position.global_step];
                conclude(&self.config, &self.directory, done, self.resumed_from.as_deref())?;
            }
            return Ok(0);
        }
        let totals = Arc::new(Mutex::new(RunTotals {
            steps: position.global_step,
            epochs: position.epoch,
            best: position.best.map(|(accuracy, step)| (accuracy, step.div_ceil(plan.sampler.steps_per_epoch()))),
            left_out: prepared.splits.left_out,
            ..RunTotals::default()
        }));
        let snapshots = Snapshots::new(&self.config, &prepared, Clock::default())?;
        let copies = snapshots.copies.clone();
        let recorder = self.recorder(snapshots, &prepared, display, totals.clone())?;
        let directory = self.directory.clone();
        let limit = self.config.parallel.limit();
        let began = Instant::now();
        let strategy = DataParallel::<B, _>::new(prepared.task.clone(), plan, self.start, limit, recorder);
        let strategy = strategy.with(processes);
        let trained = learner::train(self.model, strategy, &directory).and_then(|()| membership.complete());
        let copied = copies.map_or(Ok(()), |copies| copies.finish());
        trained?;
        let totals = totals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let seconds = self.seconds_before + began.elapsed().as_secs_f64();
        if let Some(profiler) = profiler {
            let rank = self.config.parallel.rank;
            // Processes of one machine may share the directory.
            let trace = if rank == 0 { "trace.json".into() } else { format!("trace-rank-{rank}.json") };
            report(&profiler, &directory.join(trace), &totals)?;
        }
        let code = stop.reason().map_or(0, |reason| reason.exit_code());
        if self.config.parallel.rank == 0 {
            finish(&self.config, &directory, &totals, seconds, stop.reason())?;
            if matches!(stop.reason(), Some(Reason::Signal(_))) {
                requeue::submit(&self.config, true)?;
            }
        }
        copied.map(|()| code)
    }

    fn recorder(
        &self,
        snapshots: Snapshots,
        prepared: &Prepared,
        display: ProgressKind,
        totals: Arc<Mutex<RunTotals>>,
    ) -> Result<Recorder> {
        let (config, plan) = (&self.config, &prepared.plan);
        let logs =
            Logs::open(config, &self.directory, plan.world.rank, self.kept, (goal(config, plan), &plan.stop), display)?;
        snapshots.clock.set(self.directory.clone(), self.seconds_before, 0.0);
        Ok(Recorder::new(snapshots, plan.clone(), prepared.task.clone(), totals, logs, None, B::is_processor()))
    }
}
