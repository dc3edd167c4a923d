//! The closing text of a run: its results, cost and files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use kiln_system::shown;
use serde::{Deserialize, Serialize};

use super::line::{count, percent};
use super::meter::{format_duration, gibibytes};

/// The result of a run. Its `Display` is the closing text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub epochs: usize,
    pub steps: usize,
    /// The best top-1 validation accuracy, as a fraction, and the epoch (from 1) it was reached in.
    pub best: Option<(f64, usize)>,
    /// The last top-1 validation accuracy, as a fraction.
    pub last: Option<f64>,
    /// Seconds of training, over all sessions of the run.
    pub seconds: f64,
    /// Training images per second over the last `session_steps` steps; `None` without steps.
    pub images_per_second: Option<f64>,
    /// Steps of this session: all of the run unless it was resumed.
    #[serde(default)]
    pub session_steps: usize,
    /// Peak resident memory of this process, in bytes.
    pub peak_memory: Option<u64>,
    /// The checkpoint to use, if one was saved.
    pub checkpoint: Option<PathBuf>,
    /// Damaged images that were left out of the data set.
    #[serde(default)]
    pub left_out: usize,
    /// The machine and program, as names and values.
    #[serde(default)]
    pub environment: BTreeMap<String, serde_json::Value>,
    /// Whether the run is finished: by its last step, early stopping or its time limit. A run that a signal ended is
    /// not.
    #[serde(default)]
    pub complete: bool,
}

impl Summary {
    /// The steps of the throughput measurement if they are not all: ` over the last 200 steps`.
    pub fn measured_over(&self) -> String {
        let is_part = (1..self.steps).contains(&self.session_steps);
        if is_part { format!(" over the last {} steps", self.session_steps) } else { String::new() }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = format_duration(self.seconds);
        write!(f, "trained     {}, {} in {duration}", count(self.epochs, "epoch"), count(self.steps, "step"))?;
        if let Some(rate) = self.images_per_second {
            write!(f, "\nthroughput  {rate:.0} images/s{}", self.measured_over())?;
        }
        if let Some(bytes) = self.peak_memory {
            write!(f, "\nmemory      {} peak", gibibytes(bytes as f64))?;
        }
        if self.left_out > 0 {
            write!(f, "\nleft out    {}", count(self.left_out, "damaged image"))?;
        }
        if let Some((accuracy, epoch)) = self.best {
            write!(f, "\nbest        {} validation accuracy, epoch {epoch}", percent(accuracy).trim_start())?;
        }
        if let Some(accuracy) = self.last {
            write!(f, "\nlast        {} validation accuracy", percent(accuracy).trim_start())?;
        }
        if let Some(path) = &self.checkpoint {
            write!(f, "\ncheckpoint  {}", shown(path))?;
            // The run's directory stands for its best checkpoint.
            let run = path.parent().filter(|it| it.ends_with("checkpoints")).and_then(Path::parent).unwrap_or(path);
            write!(f, "\nevaluate    train evaluate --checkpoint {}", for_shell(run))?;
        }
        Ok(())
    }
}

/// A path that can be pasted into a shell.
fn for_shell(path: &Path) -> String {
    let text = shown(path);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
