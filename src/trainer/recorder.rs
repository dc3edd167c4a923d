//! Writes the reports of a run: records to the sinks, states to the checkpoint store.

use std::path::Path;
use std::sync::Arc;

use kiln_engine::checkpoint::{Keep, run_dir, write_atomic};
use kiln_engine::parallel::{
    EpochReport, GenerationReport, Observer, Plan, Position, Probe, Split, StepReport, TrainingState, Write, fetch,
};
use kiln_ops::Traffic;
use kiln_system::Result;
use kiln_system::stop::writing;
use kiln_training::{Classification, Prediction, TOP1, TOP5};
use parking_lot::Mutex;

use super::loading::Notice;
use super::logs::Logs;
use super::origin::RUNS;
use super::serving::MovingPage;
use super::snapshot::Snapshots;
use super::step_log::Samples;
use super::succession::Succession;
use super::terminal::{say, warn};
use super::watch::Watch;
use super::{evaluation, pictures};
use crate::metrics::line::generation_line;
use crate::metrics::{EpochRecord, GenerationRecord, Record, StepRecord, Summary, Throughput, resident_memory};

/// How many steps in a row are skipped before a warning.
const PATIENCE: usize = 10;

#[derive(Debug, Clone, Default)]
pub(super) struct RunTotals {
    /// What is known of it before the end.
    pub(super) summary: Summary,
    pub(super) stalled: bool,
    /// Images of the steps that this process has seen.
    pub(super) images: u64,
    /// Seconds of training in these steps, without validation and saving.
    pub(super) training_seconds: f64,
    /// Copies of the steps after the first one, which tries kernels out, and the number of these steps. Zero on a CPU.
    pub(super) copied: (Traffic, u64),
    /// Whether this process writes the files of the run.
    pub(super) leads: bool,
}

impl RunTotals {
    /// Those of a process that begins at `position`.
    pub(super) fn begin(&mut self, position: &Position, plan: &Plan, leads: bool) {
        let epoch = |step: usize| step.div_ceil(plan.sampler.steps_per_epoch());
        self.leads = leads;
        (self.summary.steps, self.summary.epochs) = (position.global_step, position.epoch);
        self.summary.best = position.best.map(|(accuracy, step)| (accuracy, epoch(step)));
    }
}

pub(super) struct Recorder {
    pub(super) snapshots: Snapshots,
    pub(super) plan: Arc<Plan>,
    pub(super) task: Arc<Classification>,
    pub(super) logs: Logs,
    /// Opens the logs of an elastic run.
    pub(super) succession: Option<Succession>,
    pub(super) pace: Throughput,
    pub(super) watch: Watch,
    /// In an elastic run.
    pub(super) page: MovingPage,
    /// Images and seconds of the epoch's steps in this session.
    pub(super) epoch: (usize, f64),
    pub(super) has_shown: bool,
    pub(super) has_waited: bool,
    /// Until the first step is done.
    pub(super) beginning: Option<Notice>,
    pub(super) totals: Arc<Mutex<RunTotals>>,
}

impl Recorder {
    /// Logs the images of the first replica in the step of `report`, once per session.
    fn show_batch(&mut self, report: &StepReport) -> Result<()> {
        if std::mem::replace(&mut self.has_shown, true) {
            return Ok(());
        }
        let plan = &self.plan;
        let group = plan.sampler.group(report.epoch, report.step_in_epoch - 1);
        let shard = plan.shard(&group, 0, report.epoch, 0);
        let pictures = fetch(self.task.train.as_ref(), &shard.ids)?;
        let batch = self.task.assemble(Split::Training, pictures, &shard)?;
        let png = pictures::sheet(&batch, self.snapshots.description.normalization);
        self.logs.sinks.iter_mut().try_for_each(|sink| sink.picture("train/images", report.step, &png))
    }

    /// Writes the predictions of the best model so far for the validation images.
    fn show(&mut self, report: &EpochReport) -> Result<()> {
        let predictions = Prediction::from_values(&report.answers);
        let of = format!("epoch {}, the best so far", report.epoch + 1);
        let evaluation = evaluation::evaluation(&self.task.validation, &report.validation, &predictions, of)?;
        evaluation::write(&self.snapshots.clock.directory(), &evaluation)?;
        let Some(png) = pictures::matrix(&evaluation) else { return Ok(()) };
        self.logs.sinks.iter_mut().try_for_each(|sink| sink.picture("validation/confusion", report.step, &png))
    }

    /// Logs how long replicas wait for each other.
    fn look(&mut self, step: usize) -> Result<()> {
        let members = self.succession.as_ref().map(|it| it.membership.members()).unwrap_or_default();
        let looked = self.watch.look(self.snapshots.clock.seconds(), step, &members);
        // All processes know it, one says it.
        let Some((record, lines)) = looked.filter(|_| self.totals.lock().leads) else { return Ok(()) };
        lines.iter().for_each(|line| warn(line));
        self.logs.record(&Record::Replicas(record))
    }

    /// Serves the page of an elastic run if this process writes its files, and only then.
    fn serve(&mut self) {
        if self.succession.as_ref().is_some_and(|it| it.leads) {
            self.page.serve(&self.snapshots.config, &self.snapshots.clock.directory(), &self.plan.stop);
        } else {
            self.page.leave();
        }
    }

    /// Logs what units have computed since the last call.
    fn note_units(&mut self) -> Result<()> {
        let observations = self.plan.probe.as_ref().map(Probe::take).unwrap_or_default();
        self.logs.units.as_mut().map_or(Ok(()), |units| units.append(observations))
    }
}

impl Observer for Recorder {
    fn step(&mut self, report: &StepReport) -> Result<()> {
        self.beginning = None;
        if report.skipped == PATIENCE {
            warn(&format!(
                "warning: {PATIENCE} steps in a row overflowed in f16, the last at step {}; lower --learning-rate or \
                 use --precision bf16",
                report.step
            ));
        }
        self.epoch = (self.epoch.0 + report.counts.samples, self.epoch.1 + report.duration.as_secs_f64());
        let mut totals = self.totals.lock();
        totals.summary.steps = report.step;
        totals.summary.session_steps += 1;
        totals.images += report.counts.samples as u64;
        totals.training_seconds += report.duration.as_secs_f64();
        if let Some(traffic) = report.traffic.filter(|_| totals.summary.session_steps > 1) {
            totals.copied.0 += traffic;
            totals.copied.1 += 1;
        }
        self.pace.mark(totals.training_seconds, totals.images);
        drop(totals);
        if let Some(samples) = &mut self.logs.samples {
            samples.append([Samples::of(report)])?;
        }
        self.note_units()?;
        let record = StepRecord {
            step: report.step,
            epoch: report.epoch as f64 + report.step_in_epoch as f64 / self.plan.sampler.steps_per_epoch() as f64,
            loss: report.counts.mean_loss(),
            accuracy: report.counts.share(TOP1),
            lr: report.learning_rate,
            grad_norm: report.gradient_norm,
            images_per_second: self.pace.rate(),
            step_seconds: report.duration.as_secs_f64(),
            memory: resident_memory(),
            traffic: report.traffic,
            seconds: self.snapshots.clock.seconds(),
        };
        self.snapshots.clock.step();
        if let Some(succession) = &mut self.succession {
            succession.step(record, report, self.watch.own);
        }
        self.logs.record(&Record::Step(record))?;
        if self.watch.mark(record.seconds, report) {
            self.look(report.step)?;
            self.serve();
        }
        if self.snapshots.config.run.tensorboard && self.logs.store.is_some() {
            self.show_batch(report)?;
        }
        Ok(())
    }

    fn validating(&mut self, done: usize, total: usize) {
        // A progress bar that cannot be drawn is no reason to stop.
        drop(self.logs.sinks.iter_mut().try_for_each(|sink| sink.validating(done, total)));
    }

    fn epoch(&mut self, report: &EpochReport) -> Result<()> {
        self.note_units()?;
        let accuracy = report.validation.share(TOP1);
        let is_whole = report.epoch + 1 >= self.plan.epochs || report.step >= self.plan.last_step;
        let mut totals = self.totals.lock();
        (totals.summary.epochs, totals.summary.last) = (report.epoch + 1, Some(accuracy));
        totals.stalled = report.is_last && !is_whole;
        if report.is_best {
            totals.summary.best = Some((accuracy, report.epoch + 1));
        }
        drop(totals);
        let (images, seconds) = std::mem::take(&mut self.epoch);
        let record = EpochRecord {
            epoch: report.epoch + 1,
            step: report.step,
            train_loss: report.training.mean_loss(),
            train_accuracy: report.training.share(TOP1),
            val_loss: report.validation.mean_loss(),
            val_accuracy: accuracy,
            val_top5: report.validation.share(TOP5),
            lr: report.learning_rate,
            images_per_second: (seconds > 0.0).then(|| images as f64 / seconds),
            seconds: self.snapshots.clock.seconds(),
        };
        if let Some(succession) = &mut self.succession {
            succession.epoch(record);
        }
        self.logs.record(&Record::Epoch(record))?;
        if report.is_best && self.logs.store.is_some() {
            self.show(report)?;
        }
        if report.is_last {
            self.look(report.step)?;
        }
        // A stopped run will be resumed.
        if report.is_last { self.logs.sinks.iter_mut().try_for_each(|sink| sink.finish()) } else { Ok(()) }
    }

    fn generation(&mut self, report: &GenerationReport) -> Result<()> {
        let Self { snapshots, logs, succession, plan, watch, .. } = self;
        watch.restart(report.hosted.clone());
        let Snapshots { config, clock, .. } = &*snapshots;
        let Some(succession) = succession else { return Ok(()) };
        let (display, directory) = (succession.display, clock.directory());
        succession.begin(report, logs, |kept| {
            write_atomic(&directory.join("config.toml"), config.to_toml().as_bytes())?;
            Logs::open(snapshots, &directory, 0, kept, plan, display)
        })?;
        let record = GenerationRecord {
            generation: report.number,
            step: report.position.global_step,
            members: report.members,
            why: report.why.clone(),
            pause_seconds: report.pause.map(|pause| pause.as_secs_f64()),
            seconds: clock.seconds(),
        };
        if !succession.leads && config.run.progress.is_text() {
            say(&generation_line(&record));
        }
        self.totals.lock().begin(&report.position, plan, succession.leads);
        self.logs.record(&Record::Generation(record))?;
        self.serve();
        Ok(())
    }

    fn checkpoint(&mut self, state: TrainingState) -> Result<Write> {
        self.note_units()?;
        let Some(store) = self.logs.store.clone() else { return Ok(Box::new(|| Ok(()))) };
        let (snapshots, totals, identity) = (self.snapshots.clone(), self.totals.clone(), self.snapshots.identity());
        let membership = self.succession.as_ref().map(|succession| succession.membership.clone());
        Ok(Box::new(move || {
            let _phase = tracing::info_span!("checkpoint").entered();
            let _writing = writing();
            let (step, is_best) = (state.position.global_step, state.is_best);
            let shown = snapshots.config.run.progress;
            let _notice = Notice::new(shown, || format!("checkpoint  writing step {step}"));
            let snapshot = snapshots.of(state, identity);
            let kept = &snapshots.config.checkpoint;
            let saved = store.lock().save(&snapshot, is_best, Keep { last: kept.keep_last, best: kept.keep_best });
            if saved.is_err()
                && let Some(Err(lost)) = membership.map(|membership| membership.confirm())
            {
                // Another process has taken over, and has removed what this one had begun to write.
                warn(&format!("warning: step {step} was not saved here: {lost}; another process now saves the run"));
                return Ok(());
            }
            let path = saved?;
            // A trial of the program is not a run to resume.
            if !snapshots.config.run.fast_dev_run {
                run_dir::announce(Path::new(RUNS), &snapshots.clock.directory());
            }
            snapshots.copies.iter().for_each(|copies| copies.send(path.clone()));
            totals.lock().summary.checkpoint = Some(path);
            let copy = &kept.path;
            if is_best && !copy.as_os_str().is_empty() {
                snapshots.copy(&snapshot, copy)?;
            }
            Ok(())
        }))
    }

    fn waiting(&mut self, step: usize) {
        if !std::mem::replace(&mut self.has_waited, true) {
            warn(&format!(
                "warning: training waits at step {step} for the previous checkpoint, because the disk is slow; raise \
                 --checkpoint-every if this continues"
            ));
        }
    }
}
