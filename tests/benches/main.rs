//! `make bench`: what a training step is made of, on the pure-Rust backend. `compare.py` holds whole steps against PyTorch.

#![allow(missing_docs, reason = "criterion's macro makes public functions without words")]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

mod all_reduce;
mod batch_norm;
mod checkpoint;
#[cfg(feature = "gloo")]
#[path = "../engines.rs"]
mod engines;
mod loader;
mod step;

criterion::criterion_main!(
    step::benches,
    batch_norm::benches,
    all_reduce::benches,
    loader::benches,
    checkpoint::benches
);
