//! What a session of a run trains with, and what it writes at its end, with fixed membership or as an elastic process.

use std::path::Path;
use std::sync::Arc;

use kiln_engine::parallel::StartingPoint;
use kiln_system::Result;
use kiln_system::stop::Reason;
use kiln_training::{Network, Training};
use parking_lot::Mutex;

use super::clock::Clock;
use super::end::finish;
use super::leave::Leave;
use super::loading::Notice;
use super::logs::Logs;
use super::phases::report;
use super::prepare::Prepared;
use super::recorder::{Recorder, RunTotals};
use super::requeue;
use super::serving::MovingPage;
use super::snapshot::Snapshots;
use super::succession::Succession;
use super::terminal::{say, warn};
use super::watch::Watch;
use crate::config::{Config, ProgressKind};
use crate::launch::FixedMembership;
use crate::metrics::{Profiler, Summary, Throughput};
use crate::mlflow::{self, Follower, Server};

/// Seconds over which images per second are averaged.
const WINDOW: f64 = 10.0;

pub(super) struct Session {
    pub(super) prepared: Prepared,
    pub(super) snapshots: Snapshots,
    pub(super) display: ProgressKind,
    profiler: Option<Profiler>,
    totals: Arc<Mutex<RunTotals>>,
    pub(super) mlflow: Option<Server>,
}

impl Session {
    pub(super) fn new(
        config: &Config,
        prepared: Prepared,
        display: ProgressKind,
        profiler: Option<Profiler>,
    ) -> Result<Self> {
        let snapshots = Snapshots::new(config, &prepared, Clock::default())?;
        let summary = Summary { left_out: prepared.splits.left_out, ..Summary::default() };
        let totals = RunTotals { summary, ..RunTotals::default() };
        let mlflow = config.run.mlflow.then(Server::from_environment).transpose()?;
        Ok(Self { prepared, snapshots, display, profiler, totals: Arc::new(Mutex::new(totals)), mlflow })
    }

    /// A training from `start` that records into `logs` or, in an elastic run, those that `succession` opens; otherwise
    /// the processes are on these machines.
    pub(super) fn training(
        &self,
        start: StartingPoint,
        logs: Logs,
        succession: Option<Succession>,
        hosts: Vec<String>,
    ) -> Training {
        let Prepared { plan, task, is_processor, .. } = self.prepared.clone();
        self.totals.lock().begin(&start.position, &plan, succession.is_none() && plan.world.rank == 0);
        let reason = if is_processor { "" } else { "; a GPU backend compiles and tunes its kernels in it" };
        let waiting = || format!("waiting     for the first step{reason}");
        let config = &self.snapshots.config;
        let recorder = Recorder {
            snapshots: self.snapshots.clone(),
            plan: plan.clone(),
            task: task.clone(),
            logs,
            succession,
            pace: Throughput::new(WINDOW),
            watch: Watch::new(&plan.world, hosts),
            page: MovingPage::default(),
            epoch: (0, 0.0),
            has_shown: false,
            has_waited: false,
            beginning: Notice::new(config.run.progress, waiting),
            totals: self.totals.clone(),
        };
        let (limit, observer) = (config.parallel.limit(), Box::new(recorder));
        Training { task, plan, start, limit, observer, processes: None, membership: None }
    }

    /// Trains `network`, writes the trace, and the summary if this process writes the files of the run; returns the
    /// exit code. In an elastic run, `leave` knows whether this process has left before the end.
    pub(super) fn train(
        self,
        network: Box<dyn Network>,
        training: Training,
        membership: &dyn FixedMembership,
        leave: Option<&Leave>,
    ) -> Result<u8> {
        let Snapshots { config, clock, copies, .. } = &self.snapshots;
        let follower = self.mlflow.as_ref().map(|server| {
            let (clock, totals) = (clock.clone(), self.totals.clone());
            Follower::start(server.clone(), move || totals.lock().leads.then(|| clock.directory()), warn)
        });
        let trained = network.train(training).and_then(|()| membership.complete());
        drop(follower);
        let tell = |status| {
            let server = self.mlflow.iter().filter(|_| self.totals.lock().leads);
            server.for_each(|server| tell_mlflow(server, config, &clock.directory(), status));
        };
        if trained.is_err() {
            tell(mlflow::FAILED);
        }
        let copied = copies.as_ref().map_or(Ok(()), |copies| copies.finish());
        trained?;
        let (totals, directory, seconds) = (self.totals.lock().clone(), clock.directory(), clock.seconds());
        if let Some(profiler) = self.profiler {
            // Processes of one machine may share the directory, and processes of an elastic run have no fixed ranks.
            let trace = match self.prepared.plan.world.rank {
                _ if totals.leads => "trace.json".into(),
                _ if config.parallel.elastic.is_on() => format!("trace-process-{}.json", std::process::id()),
                rank => format!("trace-rank-{rank}.json"),
            };
            report(&profiler, &directory.join(trace), &totals)?;
        }
        if let Some(code) = leave.and_then(|leave| leave.code(config.run.progress)) {
            return Ok(code);
        }
        let reason = self.prepared.plan.stop.reason();
        if totals.leads {
            finish(config, &directory, &totals, seconds, reason.clone())?;
            tell(if matches!(reason, None | Some(Reason::MaxTime)) { mlflow::FINISHED } else { mlflow::KILLED });
            if matches!(reason, Some(Reason::Signal(_))) {
                requeue::submit(config, true)?;
            }
        }
        copied.map(|()| reason.map_or(0, |reason| reason.exit_code()))
    }
}

pub(super) fn tell_mlflow(server: &Server, config: &Config, directory: &Path, status: &str) {
    if let Some(page) = mlflow::complete(server, directory, status, warn)
        && config.run.progress.is_text()
    {
        say(&format!("mlflow      {page}"));
    }
}
