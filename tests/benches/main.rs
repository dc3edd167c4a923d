//! `make bench`: what a training step is made of, on the pure-Rust backend. `compare.py` holds whole steps against
//! PyTorch.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

/// That of `train`: glibc's maps large vectors anew in each round.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod all_reduce;
mod batch_norm;
mod checkpoint;
#[cfg(feature = "gloo")]
#[path = "../engines.rs"]
mod engines;
mod loader;
/// The processes of a bench have no engine beside Gloo.
#[cfg(feature = "gloo")]
mod stand_in {
    pub fn asked_for() -> Option<crate::engines::Extend> {
        None
    }
}
mod step;

criterion::criterion_main!(
    step::benches,
    batch_norm::benches,
    all_reduce::benches,
    loader::benches,
    checkpoint::benches
);
