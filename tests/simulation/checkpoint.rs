//! The mounted store of checkpoints, which writes to a directory in memory.

#[path = "../../src/checkpoint/atomic.rs"]
mod atomic;
#[path = "../../src/checkpoint/content.rs"]
mod content;
#[path = "../../src/checkpoint/manifest.rs"]
mod manifest;
#[path = "../../src/checkpoint/reading.rs"]
mod reading;
#[path = "../../src/checkpoint/retention.rs"]
mod retention;
#[path = "../../src/checkpoint/store.rs"]
mod store;

pub use manifest::Snapshot;
pub use retention::Keep;
pub use store::{Store, Which};

const MANIFEST: &str = "manifest.json";
