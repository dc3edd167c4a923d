//! The tests of the files in `lib.rs`, as they are beside the others.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]

// The tests name the engine, too.
extern crate kiln as kiln_engine;

#[path = "../checkpoint.rs"]
mod checkpoint;
#[path = "../data/sampler.rs"]
mod sampler;
#[path = "../optim/schedule.rs"]
mod schedule;
#[path = "../state.rs"]
mod state;

#[path = "../rendezvous"]
mod rendezvous {
    mod placement;
    mod rejections;
    mod roster;
    mod strict;
    mod wire;

    use std::collections::BTreeMap;
    use std::time::Duration;

    use kiln::launch::rendezvous::Terms;
    use kiln::launch::rendezvous::membership::ProcessInfo;

    fn terms(size: usize) -> Terms {
        Terms { size, timeout: Duration::from_secs(30), beat: Duration::from_millis(100) }
    }

    fn introduction(rank: usize) -> ProcessInfo {
        let configuration = BTreeMap::from([("batch_size".into(), "8".into()), ("epochs".into(), "2".into())]);
        let (host, process) = (format!("host{rank}"), 100 + rank as u32);
        ProcessInfo { rank: Some(rank), host, process, devices: 2, configuration, ..ProcessInfo::default() }
    }
}
