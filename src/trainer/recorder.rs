//! Writes down what a run reports: records to the sinks, states to the checkpoint store.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::checkpoint::{Best, Progress, RunState, Snapshot, Store, write_atomic};
use crate::config::Config;
use crate::error::Result;
use crate::metrics::{EpochRecord, Sink, StepRecord, Throughput};
use crate::parallel::{EpochReport, Observer, Position, StepReport, TrainingState};
use crate::state::{StateDict, to_safetensors};

use super::samples::SampleLog;
use super::terminal::warn;

/// Seconds over which images per second are averaged.
const WINDOW: f64 = 10.0;

/// Steps left out in a row before a person is told.
const PATIENCE: usize = 10;

/// What the end of a run needs to know of its course.
#[derive(Debug, Clone, Default)]
pub(super) struct Course {
    pub(super) steps: usize,
    pub(super) epochs: usize,
    pub(super) best: Option<(f64, usize)>,
    pub(super) last: Option<f64>,
    pub(super) images: u64,
    /// Seconds of training, validation and saving not counted.
    pub(super) training_seconds: f64,
    pub(super) checkpoint: Option<PathBuf>,
}

/// The observer of a real run.
pub(super) struct Recorder {
    pub(super) config: Config,
    pub(super) fingerprint: String,
    pub(super) steps_per_epoch: usize,
    pub(super) sinks: Vec<Box<dyn Sink>>,
    pub(super) samples: Option<SampleLog>,
    /// On the first process.
    pub(super) store: Option<Store>,
    pub(super) start: Instant,
    /// Seconds of earlier sessions of this run.
    pub(super) before: f64,
    pub(super) pace: Throughput,
    pub(super) epoch_seconds: f64,
    pub(super) course: Arc<Mutex<Course>>,
}

/// The meter of images per second.
pub(super) fn pace() -> Throughput {
    Throughput::new(WINDOW)
}

impl Recorder {
    fn seconds(&self) -> f64 {
        self.before + self.start.elapsed().as_secs_f64()
    }

    fn course(&self, change: impl FnOnce(&mut Course)) {
        change(&mut self.course.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn run_state(&self, position: &Position) -> RunState {
        RunState {
            global_step: position.global_step,
            epoch: position.epoch,
            step_in_epoch: position.step_in_epoch,
            samples_seen: position.samples_seen,
            best: position.best.map(|(metric, step)| Best { metric, step }),
            elapsed_seconds: self.seconds(),
            seed: self.config.run.seed,
            world_size: self.config.parallel.world_size,
            data_fingerprint: self.fingerprint.clone(),
            loss_scale: position.loss_scale,
            progress: Progress {
                loss_sum: position.running.loss,
                correct: position.running.top1 as u64,
                samples: position.running.samples as u64,
            },
        }
    }
}

fn model_file(weights: &StateDict, position: &Position) -> Vec<u8> {
    let metadata = [("step", position.global_step), ("epoch", position.epoch)];
    to_safetensors(weights, &metadata.map(|(key, value)| (key.to_string(), value.to_string())))
}

impl Observer for Recorder {
    fn step(&mut self, report: &StepReport) -> Result<()> {
        if report.skipped == PATIENCE {
            warn(&format!(
                "warning: {PATIENCE} steps in a row overflowed in f16, the last at step {}; lower --learning-rate or use \
                 --precision bf16",
                report.step
            ));
        }
        let images = report.tally.samples as u64;
        self.epoch_seconds += report.duration.as_secs_f64();
        self.course(|course| {
            course.steps = report.step;
            course.images += images;
            course.training_seconds += report.duration.as_secs_f64();
        });
        let (total, seconds) = {
            let course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
            (course.images, course.training_seconds)
        };
        self.pace.mark(seconds, total);
        if let Some(samples) = &mut self.samples {
            samples.append(report)?;
        }
        let record = StepRecord {
            step: report.step,
            epoch: report.epoch as f64 + report.step_in_epoch as f64 / self.steps_per_epoch as f64,
            loss: report.tally.mean_loss(),
            accuracy: report.tally.accuracy(),
            lr: report.learning_rate,
            grad_norm: report.gradient_norm,
            images_per_second: self.pace.rate(),
            step_seconds: report.duration.as_secs_f64(),
            seconds: self.seconds(),
        };
        self.sinks.step(&record)
    }

    fn validating(&mut self, done: usize, total: usize) {
        // A progress bar that cannot be drawn is no reason to stop.
        drop(self.sinks.validating(done, total));
    }

    fn epoch(&mut self, report: &EpochReport) -> Result<()> {
        let accuracy = report.validation.accuracy();
        self.course(|course| {
            course.epochs = report.epoch + 1;
            course.last = Some(accuracy);
            if report.is_best {
                course.best = Some((accuracy, report.epoch + 1));
            }
        });
        let seconds = std::mem::take(&mut self.epoch_seconds);
        self.sinks.epoch(&EpochRecord {
            epoch: report.epoch + 1,
            step: report.step,
            train_loss: report.training.mean_loss(),
            train_accuracy: report.training.accuracy(),
            val_loss: report.validation.mean_loss(),
            val_accuracy: accuracy,
            val_top5: report.validation.top5_accuracy(),
            lr: report.learning_rate,
            images_per_second: if seconds > 0.0 { report.training.samples as f64 / seconds } else { 0.0 },
            seconds: self.seconds(),
        })
    }

    fn checkpoint(&mut self, state: TrainingState) -> Result<()> {
        let _phase = tracing::info_span!("checkpoint").entered();
        let TrainingState { position, weights, optimizer, average, is_best } = state;
        // Each dictionary goes when its file is there: a model is held once, not twice.
        let mut files = vec![("model.safetensors".to_string(), model_file(&weights, &position))];
        drop(weights);
        files.push(("optimizer.safetensors".to_string(), to_safetensors(&optimizer, &[])));
        drop(optimizer);
        files.extend(average.map(|weights| ("average.safetensors".to_string(), model_file(&weights, &position))));
        files.push(("state.json".to_string(), self.run_state(&position).to_json()));
        files.push(("config.toml".to_string(), self.config.to_toml().into_bytes()));
        let snapshot = Snapshot { step: position.global_step, epoch: position.epoch, files };
        let Some(store) = &mut self.store else { return Ok(()) };
        let path = store.save(&snapshot, is_best, self.config.checkpoint.keep_last)?;
        self.course(|course| course.checkpoint = Some(path));
        let copy = &self.config.checkpoint.path;
        if is_best && !copy.as_os_str().is_empty() {
            let file = |name: &str| snapshot.files.iter().find(|(file, _)| file == name);
            let best = file("average.safetensors").or_else(|| file("model.safetensors"));
            write_atomic(copy, best.map_or(&[][..], |(_, bytes)| bytes))?;
        }
        Ok(())
    }
}
