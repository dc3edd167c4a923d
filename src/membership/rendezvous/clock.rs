//! The clock of what a member knows; `tests/simulation/` puts a virtual one in its place.

pub use std::time::Instant;
