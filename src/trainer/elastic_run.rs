//! An elastic training from the view of this process: it joins, takes part, and leaves or completes the run.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::clock::Clock;
use super::conclusion::finish;
use super::elastic::{Elastic, Own};
use super::initial::initial_model;
use super::learner;
use super::logs::{Logs, goal};
use super::origin::{RUNS, continued, inspect};
use super::overview::overview;
use super::phases::report;
use super::prepare::{Prepared, prepare};
use super::recorder::{Recorder, RunTotals};
use super::resources::cautions;
use super::resume::restore;
use super::snapshot::Snapshots;
use super::snapshot::check_copy;
use super::succession::Succession;
use super::terminal::{display, say, warn};
use crate::config::{Config, ProgressKind};
use crate::error::{Error, Result};
use crate::launch::{self, ElasticMembership, alone};
use crate::metrics::Profiler;
use crate::model::ResNet;
use crate::nn::state_dict;
use crate::parallel::nccl::Transport;
use crate::parallel::{BackendKind, DataParallel, HostBackend, StartingPoint};
use crate::state::sha256;
use crate::stop::Stop;

/// Takes part in the run and returns the exit code.
pub(super) fn train<B: HostBackend>(
    mut config: Config,
    backend: BackendKind,
    stop: Stop,
    profiler: Option<Profiler>,
) -> Result<u8> {
    if config.run.progress == ProgressKind::Auto {
        // Plain lines suit processes that join and leave.
        config.run.progress = ProgressKind::Plain;
    }
    let display = display(config.run.progress)?;
    let mut prepared = prepare::<B>(&config, alone(&config.parallel).as_ref(), stop.clone())?;
    if !config.parallel.dist_url.is_empty() {
        prepared.transport = Transport::choose::<B>(&config.parallel, false)?;
    }
    let (model, about) = initial_model::<B>(&config, &prepared)?;
    check_copy(&config.checkpoint.path)?;
    if config.run.dry_run {
        if config.parallel.dist_url.is_empty() {
            inspect(&config)?;
            continued(&config)?.map_or(Ok(()), |checkpoint| restore(&config, &prepared, &checkpoint).map(drop))?;
        }
        cautions::<B>(&config, &prepared, about.parameters, 1).iter().for_each(|line| warn(line));
        say(&overview::<B>(&config, &prepared, backend, &about, None));
        return Ok(0);
    }
    let mut shared = config.shared();
    shared.insert("images".into(), prepared.fingerprint.clone());
    shared.insert("weights".into(), sha256(&state_dict(&model)));
    let membership: Arc<dyn ElasticMembership> =
        launch::join_elastic(&config.parallel, shared, config.run.deterministic, prepared.transport.clone())?.into();
    let clock = Clock::default();
    let shown = config.run.progress.is_text();
    let announce = {
        let (config, clock) = (config.clone(), clock.clone());
        move |prepared: &Prepared| {
            cautions::<B>(&config, prepared, about.parameters, 1).iter().for_each(|line| warn(line));
            if shown {
                let directory = clock.directory();
                say(&overview::<B>(&config, prepared, backend, &about, Some(&directory)));
            }
        }
    };
    let part = Part { config, prepared, stop, display, clock, profiler };
    let result = part.train::<B>(model, membership.clone(), Box::new(announce));
    membership.leave(result.as_ref().err().map(Error::to_string).as_deref());
    result
}

/// What this process needs to take part.
struct Part {
    config: Config,
    prepared: Prepared,
    stop: Stop,
    display: ProgressKind,
    clock: Clock,
    profiler: Option<Profiler>,
}

impl Part {
    fn train<B: HostBackend>(
        self,
        model: ResNet<burn::backend::Autodiff<B>>,
        membership: Arc<dyn ElasticMembership>,
        announce: super::elastic::Announce,
    ) -> Result<u8> {
        let Self { config, prepared, stop, display, clock, profiler } = self;
        let (plan, task) = (prepared.plan.clone(), prepared.task.clone());
        let snapshots = Snapshots::new(&config, &prepared, clock.clone())?;
        let copies = snapshots.copies.clone();
        let totals = Arc::new(Mutex::new(RunTotals::default()));
        let succession = Succession::new(membership.clone(), goal(&config, &plan), display);
        let (logs, succession) = (Logs::default(), Some(succession));
        let recorder = Recorder::new(
            snapshots.clone(),
            plan.clone(),
            task.clone(),
            totals.clone(),
            logs,
            succession,
            B::is_processor(),
        );
        let own = Mutex::new(Own::with_devices(config.parallel.gpu_ids.clone()));
        let (lock, departure) = (Mutex::default(), Arc::default());
        let elastic = Elastic { membership, prepared, snapshots, announce, own, lock, departure };
        let departure = elastic.departure.clone();
        stop.instead(elastic.leaver());
        let limit = config.parallel.limit();
        let strategy = DataParallel::<B, _>::new(task, plan, StartingPoint::default(), limit, recorder);
        let trained = learner::train(model, strategy.elastic(Box::new(elastic)), &base(&config));
        let copied = copies.map_or(Ok(()), |copies| copies.finish());
        trained?;
        let totals = totals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let directory = clock.directory();
        if let Some(profiler) = profiler {
            // A process of an elastic run has no rank of its own.
            let trace =
                if totals.leads { "trace.json".into() } else { format!("trace-process-{}.json", std::process::id()) };
            report(&profiler, &directory.join(trace), &totals)?;
        }
        if departure.is_late.load(Ordering::SeqCst) {
            return Ok(0);
        }
        if departure.has_left.load(Ordering::SeqCst) {
            return Ok(departure.conclude(&config));
        }
        if totals.leads {
            finish(&config, &directory, &totals, clock.seconds(), stop.reason())?;
        }
        copied.map(|()| stop.reason().map_or(0, |reason| reason.exit_code()))
    }
}

/// The directory for Burn's learner, which does not write there.
fn base(config: &Config) -> PathBuf {
    let named = &config.run.output_dir;
    if named.as_os_str().is_empty() { Path::new(RUNS).into() } else { named.clone() }
}
