//! Hostile input: good files and messages with random damage, for every reader. Nothing panics, hangs, or takes more
//! memory than its target states.
//!
//! Each input is made from one number, so it can be made again. `make fuzz SECONDS=600 TARGET=images` runs targets for
//! longer and with other numbers than the tests do; `make fuzz TARGET=images::jpeg SEED=7` repeats one input.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]

mod configuration;
mod damage;
mod datasets;
#[path = "../files.rs"]
#[allow(dead_code, reason = "mounted from the other tests, which need more of it")]
mod files;
mod images;
mod memory;
#[cfg(feature = "gloo")]
mod rendezvous;
mod target;
mod weights;

/// The small good files in `tests/fixtures/hostile` whose names end in one of `suffixes`, in the order of their names.
fn corpus(suffixes: &[&str]) -> Vec<Vec<u8>> {
    let folder = std::fs::read_dir(files::file("tests/fixtures/hostile")).unwrap();
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| suffixes.iter().any(|suffix| path.to_string_lossy().ends_with(suffix)));
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}
