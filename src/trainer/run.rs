//! A training from start to end: of fixed membership, or as one process of an elastic run.

use std::path::{Path, PathBuf};

use kiln_engine::checkpoint::{Loaded, write_atomic};
use kiln_engine::parallel::nccl::name_interface;
use kiln_engine::parallel::{CudaGraph, StartingPoint};
use kiln_engine::state::sha256;
use kiln_ops::Precision;
use kiln_system::stop::{Heard, Stop};
use kiln_system::{Error, Result, shown};
use kiln_training::{Backend, Network, Training, backend};

use super::end::{nothing_left, summarize_complete};
use super::initial::initial_model;
use super::logs::{LogPosition, Logs};
use super::origin::{Origin, continued, inspect};
use super::overview::{experiment, overview};
use super::phases::listen;
use super::prepare::{Prepared, prepare};
use super::resources::{cautions, slow_precision};
use super::resume::{other_rate, restore};
use super::serving::{begin, place};
use super::session::{Session, tell_mlflow};
use super::snapshot::check_copy;
use super::terminal::{display, say, warn};
use super::{auto_replicas, auto_stages, broadcast, elastic, requeue};
use crate::config::{Config, ProgressKind, Resolved, RunConfig};
use crate::launch::{self, FixedMembership, alone};
use crate::metrics::{Profiler, screen};
use crate::mlflow;

/// Trains as configured and returns the exit code: 0, or the code of the signal that ended the run.
pub fn train(resolved: Resolved) -> Result<u8> {
    let backend = backend(resolved.config.parallel.backend)?;
    train_on(backend, resolved).map_err(Error::of_training)
}

fn train_on(backend: &'static dyn Backend, resolved: Resolved) -> Result<u8> {
    let Resolved { mut config, mut notes, .. } = resolved;
    requeue::prepare(&mut config)?;
    let quiet = launch::quiet_name(&config.parallel).filter(|_| config.run.progress.is_text());
    let tell = |what| quiet.iter().for_each(|name| say(&format!("{name:<10}  {what}")));
    notes.extend(choose_precision(backend, &mut config.run));
    let is_elastic = config.parallel.elastic.is_on();
    if config.parallel.rank > 0 {
        // Only the first process prints.
        config.run.progress = ProgressKind::None;
    } else {
        // Standard output is for programs then.
        let say = if config.run.progress == ProgressKind::Json { warn } else { say };
        notes.iter().for_each(|note| say(&format!("note: {note}")));
    }
    if is_elastic && config.run.progress == ProgressKind::Auto {
        // Plain lines suit processes that join and leave.
        config.run.progress = ProgressKind::Plain;
    }
    // SAFETY: this is before the first thread that reads the environment.
    unsafe { name_interface(&config.parallel.dist_interface, config.parallel.dist_backend) };
    let stop = stop(&config)?;
    let profiler = listen(config.run.profile);
    // An elastic run is prepared as one process, and joins the others later.
    let membership = match is_elastic {
        true => alone(&config.parallel)?,
        false => launch::join(&config.parallel, config.shared())?,
    };
    tell("takes part; rank 0 shows the progress");
    let result = run(backend, config, membership.as_ref(), stop, profiler);
    if result.is_ok() {
        tell("done");
    }
    membership.leave(result.as_ref().err().map(Error::to_string).as_deref());
    result
}

/// Uses f32 instead of a half type that was chosen for speed but is no faster here, and returns a note.
fn choose_precision(backend: &dyn Backend, run: &mut RunConfig) -> Option<String> {
    let slow = slow_precision(backend, run.precision).filter(|_| run.half_if_fast)?;
    let name = run.precision.name();
    run.precision = Precision::F32;
    Some(format!("{slow}; using f32 instead, unless you give only --precision {name}"))
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
            say("stopping    after this step, to save; press Ctrl-C again to end the run at once")
        }
        Heard::Again if prints => warn("ended by a second Ctrl-C; steps since the last checkpoint are not saved"),
        Heard::First | Heard::Again => {}
    };
    stop.listen_to_signals(tell).map_err(Error::io("listen to signals of", Path::new("this process")))?;
    Ok(stop)
}

fn run(
    backend: &'static dyn Backend,
    mut config: Config,
    membership: &dyn FixedMembership,
    stop: Stop,
    profiler: Option<Profiler>,
) -> Result<u8> {
    let display = display(config.run.progress)?;
    if config.parallel.cuda_graph == CudaGraph::On {
        backend.check_graph(membership.world())?;
    }
    if config.parallel.cudnn {
        backend.use_cudnn(membership.world())?;
    }
    let mut prepared = prepare(backend, &config, membership, stop)?;
    let is_elastic = config.parallel.elastic.is_on();
    let meets = is_elastic && !config.parallel.dist_url.is_empty();
    if meets || !is_elastic {
        let is_alone = !meets && membership.world().processes() == 1;
        prepared.transport = backend.transport(&config.parallel.gpu_ids, config.parallel.dist_backend, is_alone)?;
    }
    membership.agree("images", &|| prepared.fingerprint.clone())?;
    let (network, about) = initial_model(backend, &config, &prepared)?;
    auto_stages::choose(backend, &mut config, &mut prepared, membership, network.as_ref())?;
    auto_replicas::choose(&config, &mut prepared, membership, network.as_ref())?;
    prepared.experiment = experiment(&config, &prepared, &about);
    let caution = {
        let (config, parameters, local_processes) = (config.clone(), about.parameters, membership.local_processes());
        move |prepared: &Prepared| {
            cautions(backend, &config, prepared, parameters, local_processes).iter().for_each(|line| warn(line));
        }
    };
    // What a process of an elastic run hosts is known when it takes part.
    let warns_later = is_elastic && !config.run.dry_run;
    if config.parallel.rank == 0 {
        if !warns_later {
            caution(&prepared);
        }
        check_copy(&config.checkpoint.path)?;
    }
    let introduce = {
        let config = config.clone();
        move |prepared: &Prepared, directory: Option<&Path>| {
            if warns_later {
                caution(prepared);
            }
            if config.run.progress.is_text() || config.run.dry_run {
                say(&overview(backend, &config, prepared, &about, directory));
            }
        }
    };
    if config.run.dry_run {
        if config.parallel.rank == 0 {
            // Where elastic processes meet, the first one of them reads the directory.
            let checkpoint = if meets { None } else { inspect(&config).and_then(|()| continued(&config))? };
            let beginning = Beginning::of(&config, &prepared, checkpoint, network)?;
            Session::new(&config, prepared.clone(), display, None)?;
            introduce(&prepared, None);
            beginning.announce();
        }
        return Ok(0);
    }
    let session = Session::new(&config, prepared, display, profiler)?;
    if is_elastic {
        return elastic::train(session, network, membership, Box::new(introduce));
    }
    train_fixed(session, network, membership, introduce)
}

fn train_fixed(
    session: Session,
    network: Box<dyn Network>,
    membership: &dyn FixedMembership,
    introduce: impl Fn(&Prepared, Option<&Path>),
) -> Result<u8> {
    let (prepared, config) = (&session.prepared, &session.snapshots.config);
    let (plan, rank, place) = (&prepared.plan, config.parallel.rank, place(config)?);
    let processes = membership.connect(&plan.world, config.run.deterministic, &prepared.transport)?;
    let Origin { directory, checkpoint, lock: _lock, .. } = broadcast::origin(config, processes.as_ref())?;
    plan.stop.begin();
    let beginning = Beginning::of(config, prepared, checkpoint, network)?;
    if rank == 0 {
        write_atomic(&directory.join("config.toml"), config.to_toml().as_bytes())?;
    }
    membership.agree("weights", &|| sha256(&beginning.network.state()))?;
    introduce(prepared, Some(&directory));
    if config.run.progress.is_text() {
        beginning.announce();
    }
    let Beginning { network, start, seconds, logged, resumed_from, .. } = beginning;
    if plan.is_complete(&start.position) {
        if config.run.progress != ProgressKind::Json {
            say(&nothing_left(plan, &start.position));
        }
        if rank == 0 {
            let done = [start.position.epoch, start.position.global_step];
            summarize_complete(config, &directory, done, resumed_from.as_deref())?;
            session.mlflow.iter().for_each(|server| tell_mlflow(server, config, &directory, mlflow::FINISHED));
        }
        return Ok(0);
    }
    session.snapshots.clock.set(directory.clone(), seconds, 0.0);
    let logs = Logs::open(&session.snapshots, &directory, rank, logged, plan, session.display)?;
    let _page = place.map(|place| begin(place, config, &directory, &plan.stop)).transpose()?;
    let training = Training { processes, ..session.training(start, logs, None, membership.hosts()) };
    session.train(network, training, membership, None)
}

struct Beginning {
    network: Box<dyn Network>,
    start: StartingPoint,
    /// Those of earlier sessions.
    seconds: f64,
    /// The position up to which the logs of earlier sessions are valid.
    logged: LogPosition,
    resumed_from: Option<PathBuf>,
    /// How the learning rate changes, if it does.
    rate: Option<String>,
}

impl Beginning {
    /// From `checkpoint`, or with `network` as it is.
    fn of(config: &Config, prepared: &Prepared, checkpoint: Option<Loaded>, network: Box<dyn Network>) -> Result<Self> {
        let Some(checkpoint) = checkpoint else {
            let (start, logged) = (StartingPoint::default(), LogPosition::default());
            return Ok(Self { network, start, seconds: 0.0, logged, resumed_from: None, rate: None });
        };
        let (training, state) = restore(config, prepared, &checkpoint)?;
        let rate = other_rate(&checkpoint, &prepared.plan, &training.position)?;
        let (network, start) = network.restore(&training, &shown(&checkpoint.path))?;
        let epoch_end = state.global_step - state.step_in_epoch.min(state.global_step);
        let logged = LogPosition { step: state.global_step, epoch_end };
        Ok(Self { network, start, seconds: state.elapsed_seconds, logged, resumed_from: Some(checkpoint.path), rate })
    }

    fn announce(&self) {
        if let Some(path) = &self.resumed_from {
            let position = &self.start.position;
            let steps = position.global_step;
            say(&format!("resuming    {} after step {steps}, in epoch {}", shown(path), position.epoch + 1));
        }
        self.rate.iter().for_each(|words| say(&format!("            {words}")));
    }
}
