//! The measured values: one record per step, per epoch, and per change of membership; of several replicas one every few
//! seconds.
//!
//! JSON lines carry their kind: `{"kind":"step","step":1,...}` or `{"kind":"epoch","epoch":1,...}`. JSON has no NaN: a
//! loss that is not finite is written as `null` and read back as NaN.

use std::path::PathBuf;

use kiln_ops::Traffic;
use serde::{Deserialize, Deserializer, Serialize};

/// The numbers of one optimizer step, over the whole global batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Optimizer steps done, this one included.
    pub step: usize,
    /// Epochs done, as a fraction: 2.5 is the middle of the third epoch.
    pub epoch: f64,
    /// Mean loss over the samples of the step.
    #[serde(deserialize_with = "nan_if_null")]
    pub loss: f64,
    /// Top-1 accuracy over the samples of the step, as a fraction.
    pub accuracy: f64,
    pub lr: f64,
    /// Norm of the mean gradient before clipping.
    #[serde(deserialize_with = "nan_if_null")]
    pub grad_norm: f64,
    /// Training images per second over a recent window; `None` in the first step of a session.
    pub images_per_second: Option<f64>,
    /// Seconds that this step took.
    pub step_seconds: f64,
    /// Resident memory of the process after the step, in bytes; `None` if the system does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Copies between host and devices since the step before; `None` in the first step of a session and if the devices
    /// are the processor.
    #[serde(flatten)]
    pub traffic: Option<Traffic>,
    /// Seconds of training so far, over all sessions of the run.
    pub seconds: f64,
}

/// The numbers of one epoch of training and the validation after it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Epochs done, this one included.
    pub epoch: usize,
    pub step: usize,
    /// Mean loss over the training samples of the epoch.
    #[serde(deserialize_with = "nan_if_null")]
    pub train_loss: f64,
    /// Top-1 accuracy over the training samples of the epoch, as a fraction.
    pub train_accuracy: f64,
    #[serde(deserialize_with = "nan_if_null")]
    pub val_loss: f64,
    /// Top-1 accuracy on the validation samples, as a fraction.
    pub val_accuracy: f64,
    /// Top-5 accuracy on the validation samples, as a fraction.
    pub val_top5: f64,
    pub lr: f64,
    /// Training images per second over the epoch's steps in this session, without validation; `None` without a step.
    pub images_per_second: Option<f64>,
    /// Seconds of training so far, over all sessions of the run.
    pub seconds: f64,
}

/// The start of a session: of a new run, or of a resumed one, perhaps with other settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRecord {
    /// Optimizer steps done before it.
    pub step: usize,
    /// Epochs of the whole run.
    pub epochs: usize,
    /// The last optimizer step of this session, if nothing stops it earlier.
    pub steps: usize,
    pub directory: PathBuf,
    pub settings: String,
    /// What is trained, in words under names: data, model, batch, schedule, optimizer.
    #[serde(default)]
    pub about: Vec<(String, String)>,
    #[serde(default)]
    pub command: String,
    /// When it began, in UTC.
    #[serde(default)]
    pub date: String,
}

/// The start of a generation of an elastic run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerationRecord {
    /// Number of the generation, from 1.
    pub generation: u64,
    pub step: usize,
    pub members: usize,
    /// Which processes joined or left.
    pub why: String,
    /// Seconds from the last step of the previous generation to the start of this one; `null` if unknown.
    pub pause_seconds: Option<f64>,
    /// Seconds of training so far, over all sessions of the run.
    pub seconds: f64,
}

/// How long the replicas of a run of several waited for each other, every few seconds and at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicasRecord {
    pub step: usize,
    pub replicas: Vec<ReplicaRecord>,
    /// The processes of an elastic run, those in reserve, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberRecord>,
    /// Seconds of training so far, over all sessions of the run.
    pub seconds: f64,
}

/// What a replica, or with stages a stage of one, did in the steps of the last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// From 0, as stages and processes are.
    pub replica: usize,
    pub stage: usize,
    pub process: usize,
    /// The machine of its process; empty if there is one process.
    pub host: String,
    /// The index of its device, as given by `--gpu-ids`.
    pub device: usize,
    /// Seconds of a step without waits for other replicas.
    pub work_seconds: f64,
    /// Those of them in which its loader had no batch yet.
    pub loading_seconds: f64,
    /// Seconds of a step in which it waited for others while its own data was on the way to their hosts. They are not in
    /// `work_seconds`.
    #[serde(default)]
    pub sending_seconds: f64,
    /// Seconds that others waited for it in the last minute.
    pub waited_minute: f64,
    /// Seconds that others waited for it since the process that writes the log or, in an elastic run, the
    /// generation began.
    pub waited: f64,
    /// Why it is slow, if it was during the whole minute.
    pub slow: Option<Cause>,
}

impl ReplicaRecord {
    /// Such as `replica 3`, or with stages `stage 1 of replica 3`; all have a stage 0.
    pub fn name(&self) -> String {
        let stage = if self.stage > 0 { format!("stage {} of ", self.stage) } else { String::new() };
        format!("{stage}replica {}", self.replica)
    }

    /// The part of its work in which it waits for its loader, in percent.
    pub(crate) fn loading(&self) -> f64 {
        100.0 * self.loading_seconds / self.work_seconds.max(f64::MIN_POSITIVE)
    }
}

/// What a slow replica waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    Loader,
    Device,
    Network,
}

/// A process of an elastic run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    pub host: String,
    pub process: u32,
    /// What it does, for people.
    pub does: String,
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Record {
    Start(Box<StartRecord>),
    Step(StepRecord),
    Epoch(EpochRecord),
    Generation(GenerationRecord),
    Replicas(ReplicasRecord),
}

impl Record {
    /// Its numbers, as they are called where they are drawn.
    pub fn scalars(&self) -> Vec<(&'static str, f64)> {
        let scalars: &[_] = match self {
            Self::Step(record) => &[
                ("train/loss", Some(record.loss)),
                ("train/accuracy", Some(record.accuracy)),
                ("train/lr", Some(record.lr)),
                ("train/grad_norm", Some(record.grad_norm)),
                ("throughput/images_per_second", record.images_per_second),
                ("throughput/step_seconds", Some(record.step_seconds)),
            ],
            Self::Epoch(record) => &[
                ("val/loss", Some(record.val_loss)),
                ("val/accuracy", Some(record.val_accuracy)),
                ("val/top5", Some(record.val_top5)),
                ("epoch/train_loss", Some(record.train_loss)),
                ("epoch/train_accuracy", Some(record.train_accuracy)),
            ],
            Self::Start(_) | Self::Generation(_) | Self::Replicas(_) => &[],
        };
        scalars.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect()
    }
}

fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
