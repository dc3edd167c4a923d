//! Saving a run so that it can go on, whatever happens in between.
//!
//! Reading order: [`store`] is the directory of checkpoints, [`manifest`] what makes one of them trustworthy,
//! [`atomic`] how anything reaches the disk, [`retention`] which checkpoints stay, [`state`] where a run stands,
//! [`compatibility`] what a resumed run must share with the saved one, [`run_dir`] who owns a directory, [`lock`] that
//! only one run writes there.
//!
//! # Why a kill at any moment is safe
//!
//! [`Store::save`] takes these steps in this order. Files are flushed to the disk (fsync) before the rename that makes
//! them visible, and that rename before the pointers that rely on it, so the order holds for a power cut too.
//!
//! 1. The files, and the manifest last, go into a directory whose name ends in `.tmp`. Nobody reads such a name.
//! 2. Only if `step-N` exists (a resumed run arrives at the same step again): it is renamed to `step-N.old`.
//! 3. It is renamed to `step-N`; the old one, if any, is deleted.
//! 4. `best`, if this one is the best, then `latest` are exchanged by renaming a new symlink over the old one.
//! 5. Checkpoints that retention gives up are renamed to `step-M.tmp`, then deleted.
//!
//! A pointer is only ever set to a directory that is already complete, and no directory it points to is deleted, so
//! `latest` is valid throughout. The one exception is between the two renames of steps 2 and 3, when `latest` may name
//! the checkpoint that is being replaced: [`Store::open`] finds `step-N.old` without `step-N` and renames it back,
//! before anything is read. `best` goes first because the run resumes from `latest`: killed between the two, it
//! reaches step N again and finds the same best; the other way round it would believe in a best that has no pointer.
//!
//! This room does not know what the files mean: it knows no model, no optimizer and no backend.

pub mod atomic;
pub mod compatibility;
pub mod config;
pub mod lock;
pub mod manifest;
pub mod retention;
pub mod run_dir;
pub mod state;
pub mod store;

pub use atomic::{check_writable, write_atomic};
pub use compatibility::differences;
pub use config::*;
pub use lock::Lock;
pub(crate) use manifest::MANIFEST;
pub use manifest::Snapshot;
pub use retention::{Keep, retain};
pub use state::{Best, Progress, RunState};
pub use store::{Loaded, Store, Which, read};
