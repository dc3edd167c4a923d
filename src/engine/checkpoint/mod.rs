//! Checkpoints: the saved states of a run, safe against a kill at any moment.
//!
//! Reading order: [`store`] is the directory of checkpoints, [`reading`] reads one, [`manifest`] has its checksums,
//! [`content`] writes its files, [`atomic`] others, [`retention`] decides which checkpoints are kept, [`state`] is the
//! position of a run, [`copies`] keeps them elsewhere, too, [`compatibility`] compares configurations, [`run_dir`]
//! claims a directory, [`lock`] keeps other runs out of it.
//!
//! # Why a kill at any moment is safe
//!
//! [`Store::save`] takes these steps in this order. Files are flushed to the disk (fsync) before the rename that makes
//! them visible, and that rename before the pointers to it, so the order also holds for a power failure.
//!
//! 1. The files, and the manifest last, are written to a directory whose name ends in `.tmp`, which is never read.
//! 2. Only if `step-N` exists (a resumed run reaches the same step again): it is renamed to `step-N.old`.
//! 3. The new directory is renamed to `step-N`; the old one, if any, is deleted.
//! 4. `best`, if this one is the best, then `latest` are exchanged by renaming a new symlink over the old one.
//! 5. Checkpoints that are no longer kept are renamed to `step-M.tmp`, then deleted.
//!
//! A pointer is only set to a complete directory, and no directory with a pointer is deleted, so `latest` is always
//! valid. The one exception is between the two renames of steps 2 and 3, when `latest` may name the checkpoint that is
//! being replaced: [`Store::open`] finds `step-N.old` without `step-N` and renames it back, before anything is read. A
//! concurrent reader waits for the new one, and reads `step-N.old` if it does not come.
//! `best` is set first because the run resumes from `latest`: killed between the two, it reaches step N again and sets
//! the same best; in the other order the resumed state would name a best checkpoint that has no pointer.
//!
//! This room does not interpret the files: it knows tensors, but neither models, optimizers nor backends.

pub mod atomic;
pub mod compatibility;
pub mod config;
pub mod content;
pub mod copies;
pub mod lock;
pub mod manifest;
pub mod reading;
pub mod retention;
pub mod run_dir;
pub mod state;
pub mod store;

pub use atomic::create_atomic;
pub use atomic::{check_writable, write_atomic};
pub use compatibility::differences;
pub use config::*;
pub use content::Content;
pub use copies::{Copies, absent, fetch, newest, read};
pub use lock::Lock;
pub use manifest::Snapshot;
pub use reading::{Loaded, is_there};
pub use retention::{Keep, retain};
pub use state::{Best, Progress, RunState};
pub use store::{Store, Which, all};

/// The name of the file that lists the others, with their checksums.
pub const MANIFEST: &str = "manifest.json";
