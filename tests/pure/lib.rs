//! The files of `src/` that decide and need no tensor library, under the names that they have in Kiln.
//!
//! `make mutants` changes them one operator at a time and asks the tests to notice.

#![allow(
    dead_code,
    unused_imports,
    unused_qualifications,
    reason = "mounted files have more callers in their own crate"
)]

// Files of the application name the engine.
extern crate self as kiln_engine;

#[path = "../../src/engine/checkpoint/mod.rs"]
pub mod checkpoint;
#[path = "../../src/engine/state.rs"]
pub mod state;

#[path = "../../src/engine/optim"]
pub mod optim {
    mod config;
    mod loss_scale;
    mod schedule;

    pub use config::{CountedFrom, LrScaling, ScheduleConfig, ScheduleInterval, ScheduleKind, WarmupShape};
    pub use loss_scale::LossScale;
    pub use schedule::Schedule;
}

#[path = "../../src/engine/parallel"]
pub mod parallel {
    mod config;
    mod sampler;
    mod tree;

    pub(crate) use config::Elastic;
    pub use sampler::{Group, Sampler, SamplerConfig, validation_batches, validation_place};

    pub(crate) const PATIENCE: u32 = 10;
}

#[path = "../../src/launch"]
pub mod launch {
    pub mod status;

    pub mod rendezvous {
        mod change_causes;
        mod clock;
        mod differences;
        mod election;
        mod eligibility;
        pub mod membership;
        pub mod placement;
        pub mod refusal;
        pub mod rejections;
        pub mod roster;
        mod rules;
        mod sentence;
        pub mod wire;

        use std::time::Duration;

        use membership::LATE_BEATS;
        pub use membership::MOST_MEMBERS;

        /// What the mounted files need of the terms of a job.
        pub struct Terms {
            pub size: usize,
            pub timeout: Duration,
            pub beat: Duration,
        }
    }
}
