//! How a process leaves an elastic run, and where it saved its state.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use kiln_engine::checkpoint::{Store, write_atomic};
use kiln_engine::parallel::TrainingState;
use kiln_system::stop::Reason;
use kiln_system::{Result, shown};
use parking_lot::Mutex;

use super::snapshot::Snapshots;
use super::terminal::{say, warn};
use crate::config::ProgressKind;

#[derive(Debug, Default)]
pub(super) struct Leave {
    /// The signal that asked for it; 0 for none.
    pub(super) signal: AtomicI32,
    pub(super) has_left: AtomicBool,
    /// Whether the run was complete before this process took part.
    pub(super) is_late: AtomicBool,
    /// The step and the path of the state that this process saved since it last computed.
    saved: Mutex<Option<(usize, PathBuf)>>,
}

impl Leave {
    /// Saves the state of this process. Others may do the same, in the same directory.
    pub(super) fn save(&self, state: &TrainingState, snapshots: &Snapshots) -> Result<()> {
        let snapshot = snapshots.of(state.clone(), snapshots.identity());
        let directory = snapshots.clock.directory();
        let path = Store::save_beside_others(&directory, &snapshot)?;
        let described = directory.join("config.toml");
        if !described.exists() {
            write_atomic(&described, snapshots.config.to_toml().as_bytes())?;
        }
        snapshots.copies.iter().for_each(|copies| copies.send(path.clone()));
        *self.saved.lock() = Some((snapshot.step, path));
        Ok(())
    }

    /// Saves the state of this process before it fails, and prints where.
    pub(super) fn save_or_warn(&self, state: Option<&TrainingState>, snapshots: &Snapshots) {
        let Some(state) = state else { return };
        match self.save(state, snapshots) {
            Ok(()) => self.whereabouts().iter().for_each(|words| warn(words)),
            Err(error) => {
                warn(&format!("the state after step {} could not be saved: {error}", state.position.global_step));
            }
        }
    }

    /// This process takes part again: the state that it saved is out of date.
    pub(super) fn forget(&self) {
        *self.saved.lock() = None;
    }

    /// The path of the state that this process saved, if it did.
    fn whereabouts(&self) -> Option<String> {
        let saved = self.saved.lock();
        let (step, path) = saved.as_ref()?;
        Some(format!("the state after step {step} is saved; continue with --resume={}", shown(path)))
    }

    /// The exit code if this process took no part in the end of the run; how it left is printed.
    pub(super) fn code(&self, progress: ProgressKind) -> Option<u8> {
        if self.is_late.load(Ordering::SeqCst) {
            return Some(0);
        }
        if !self.has_left.load(Ordering::SeqCst) {
            return None;
        }
        let saved = self.whereabouts();
        if saved.is_some() || progress.is_text() {
            let elsewhere = "the other processes continue the run; if none is left, one of them saved its state";
            say(&format!("\nleft        {}", saved.as_deref().unwrap_or(elsewhere)));
        }
        Some(match self.signal.load(Ordering::SeqCst) {
            0 => 0,
            signal => Reason::Signal(signal).exit_code(),
        })
    }
}
