//! The position of a run: what a resumed run needs besides tensors and configuration.
//!
//! It is the `state.json` of a checkpoint. It holds no random state, since every random number of a run is a function
//! of the seed and of the numbers below. Floating-point numbers are text that reads back to the same bits, NaN included
//! (JSON has no NaN, and its readers may round), because a resumed run must continue exactly.

use std::path::Path;

use kiln_system::{Error, Result, shown};
use serde::{Deserialize, Serialize};

use crate::exact::{self, Exact};
use crate::optim::{LossScale, Plateau};

/// The version of the format that this build writes and reads.
const VERSION: u64 = 1;

/// The most epochs, and the most steps or samples, of any run; sums and products of such numbers do not overflow.
const MOST_EPOCHS: usize = 1 << 20;
const MOST: u64 = 1 << 53;

/// The position of a run between two steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    pub global_step: usize,
    /// The epoch, from 0, that the next step belongs to.
    pub epoch: usize,
    pub step_in_epoch: usize,
    pub samples_seen: u64,
    pub best: Option<Best>,
    /// Seconds of training so far, over all its sessions.
    #[serde(with = "exact")]
    pub elapsed_seconds: f64,
    pub seed: u64,
    pub world_size: usize,
    pub data_fingerprint: String,
    pub progress: Progress,
    #[serde(default)]
    pub loss_scale: LossScale,
    #[serde(default, skip_serializing_if = "Plateau::is_new")]
    pub plateau: Plateau,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Its score, such as top-1 accuracy as a fraction.
    #[serde(with = "exact")]
    pub metric: f64,
    pub step: usize,
}

/// Sums over the samples of the current epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    #[serde(with = "exact")]
    pub loss_sum: f64,
    pub correct: u64,
    pub samples: u64,
    /// Everything that the task counts, where `correct` does not say all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<[Exact; 2]>,
}

impl RunState {
    pub fn to_json(&self) -> Vec<u8> {
        let document = serde_json::json!({ "version": VERSION, "state": self });
        format!("{document:#}\n").into_bytes()
    }

    /// Reads `state.json`; `origin` is the path that errors name.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is damaged or has another version.
    pub fn from_json(bytes: &[u8], origin: &Path) -> Result<Self> {
        let name = shown(origin);
        let damaged = |e: serde_json::Error| {
            Error::Checkpoint(format!("'{name}' is not the state of a run ({e}); resume from another checkpoint"))
        };
        let mut document: serde_json::Value = serde_json::from_slice(bytes).map_err(damaged)?;
        let version = document.get("version").cloned().unwrap_or_default();
        if version != VERSION {
            return Err(Error::Checkpoint(format!(
                "'{name}' is of version '{version}', this build reads version {VERSION}; resume with the build that \
                 wrote it"
            )));
        }
        let state = document.get_mut("state").map(serde_json::Value::take).unwrap_or_default();
        let state: Self = serde_json::from_value(state).map_err(damaged)?;
        let (Progress { correct, samples, .. }, plateau) = (state.progress, &state.plateau);
        let counts = [state.global_step, state.step_in_epoch, plateau.bad, plateau.cooldown, plateau.reductions];
        let counts = counts.map(|count| count as u64).into_iter().chain([state.samples_seen, correct, samples]);
        if state.epoch > MOST_EPOCHS || counts.into_iter().any(|count| count > MOST) {
            return Err(damaged(serde::de::Error::custom("its counts are larger than those of any run")));
        }
        Ok(state)
    }
}
