//! Deterministic simulation: whole elastic runs in virtual time, each from one seed.
//!
//! The files that decide are those of `src/`, mounted here with a virtual clock, so that this target needs neither an
//! engine nor a tensor library. What they drive is a model: network, engines, disk, processes (see `world`).
//! `make simulate SEEDS=10000` runs more seeds than the tests do, `make simulate SEED=7` one with its log of events.

#![allow(dead_code, unused_qualifications, reason = "mounted files have more callers in their own crate")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint;
mod election;
mod growth;
mod random;
mod rendezvous;
#[path = "../../src/membership/speed.rs"]
mod speed;
mod state;
#[path = "../../src/membership/status.rs"]
mod status;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use rendezvous::world::{Plan, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().expect("a number"))
}

fn history(seed: u64, aloud: bool) {
    World::new(seed, Plan::of(seed), aloud).run();
}

/// Runs the seeds on all cores; returns the first that fails, and why.
fn simulate(seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    let (next, failed) = (AtomicU64::new(seeds.start), std::sync::Mutex::new(None::<(u64, String)>));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failed.lock().unwrap().is_some() {
                return;
            }
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| history(seed, false))) else { continue };
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
            let mut failed = failed.lock().unwrap();
            if failed.as_ref().is_none_or(|(other, _)| seed < *other) {
                *failed = Some((seed, text));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
    });
    failed.into_inner().unwrap()
}

#[test]
fn every_history_keeps_every_promise() {
    if let Some(seed) = number("KILN_SEED") {
        return history(seed, true);
    }
    std::panic::set_hook(Box::new(|_| ()));
    let found = simulate(0..number("KILN_SEEDS").unwrap_or(300));
    drop(std::panic::take_hook());
    if let Some((seed, why)) = found {
        panic!("seed {seed}: {why}\nreplay it with its log of events: make simulate SEED={seed}");
    }
}
