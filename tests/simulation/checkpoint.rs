//! The mounted store of checkpoints, which writes to a directory in memory.

#[path = "../../src/engine/checkpoint/atomic.rs"]
mod atomic;
#[path = "../../src/engine/checkpoint/content.rs"]
mod content;
#[path = "../../src/engine/checkpoint/manifest.rs"]
mod manifest;
#[path = "../../src/engine/checkpoint/reading.rs"]
mod reading;
#[path = "../../src/engine/checkpoint/retention.rs"]
mod retention;
#[path = "../../src/engine/checkpoint/store.rs"]
mod store;

pub use manifest::Snapshot;
pub use retention::Keep;
pub use store::{Store, Which};

const MANIFEST: &str = "manifest.json";
