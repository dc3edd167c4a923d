//! Data-parallel training: a world of replicas on devices, and their collectives.
//!
//! `task.rs` defines what can be trained, `sampler.rs` the order of samples, `world.rs` the topology, `collective.rs`
//! the collectives, `key.rs` their names. `local.rs` and `combine.rs` implement them between threads, `processes.rs`
//! between processes by the engines of `engine.rs`; `sums.rs` orders the sums of gradients, `tensors.rs` computes them,
//! `sharding.rs` parts the update. `strategy.rs` is the strategy for Burn's learner, `coordinator.rs` hears its
//! replicas, `generation.rs` is elastic membership. `set_up.rs` makes a replica, `replica.rs` is its program,
//! `passes.rs` its forward and backward passes, `micro_batch_group.rs` those who share batch-norm's statistics in one,
//! `accumulation.rs` the sums over micro-batches, `stage.rs` its place among the stages of a model, `gathering.rs`
//! their states as one, `timing.rs` the times of their units, `overlap.rs` the all-reduce beside the backward pass,
//! `agreement.rs` the comparison of replicas, `probe.rs` what units compute, `writer.rs` the thread that saves. This
//! room knows neither networks, images, files nor terminals: it gets a [`Task`] and reports to an [`Observer`].

mod accumulation;
mod agreement;
mod batches;
mod bucket;
mod checksum;
mod collective;
mod config;
mod coordinator;
mod counts;
mod device;
#[cfg(feature = "cuda")]
mod driver;
mod ending;
pub mod engine;
mod epoch;
mod events;
mod gathering;
mod generation;
#[cfg(feature = "gloo")]
pub mod gloo;
mod handle;
#[cfg(any(feature = "cuda", test))]
mod kernels;
mod key;
mod learner;
mod loader;
mod local;
mod message;
mod micro_batch_group;
pub mod nccl;
mod outcome;
mod overlap;
mod passes;
mod plan;
mod position;
mod probe;
mod processes;
mod reduction;
mod remedy;
mod replica;
mod sampler;
mod set_up;
mod sharding;
mod stage;
mod step;
mod strategy;
mod sums;
mod task;
mod tensors;
mod timing;
mod trainee;
mod tree;
mod validate;
mod wire;
mod world;
mod writer;

pub use crate::ops::statistics::{Combine, Part};
pub use collective::{Collective, local_group};
pub use config::{BackendKind, DistBackend, Elastic, ParallelConfig, ReducePrecision, StrategyKind};
pub use counts::{COUNTED, Counts};
pub use device::{HostBackend, check_devices, check_precision};
pub use events::{EpochReport, GenerationReport, Observer, StepReport};
pub use generation::{Assignment, Generation, Held, Membership, Undisturbed};
pub use handle::LoaderHandle;
pub use key::{Broken, Key, Operation};
pub use learner::{Components, LearningRate, TaskLearner, UpdateRule};
pub use loader::{Loader, Shard};
pub(crate) use local::PATIENCE;
pub use outcome::Sums;
pub use plan::Plan;
pub use position::{Position, StartingPoint, TrainingState};
pub use probe::{Observation, Observed, Probe, first_difference};
pub use processes::{Devices, Links, Processes, StageEngine};
pub use remedy::memory_error;
pub(crate) use remedy::words;
pub use sampler::{Group, MicroBatch, Sampler, SamplerConfig, validation_batches, validation_place};
pub use sharding::{all_gather, reduce_scatter};
pub use stage::{Turn, ahead, turns};
pub use strategy::DataParallel;
pub use sums::{Destination, sum_across};
pub use task::{Activations, Evaluated, Foresight, Losses, Passage, Passed, Split, Task, Unit, fetch, unit_of};
pub use timing::{Times, Timing, time_copy, time_units};
pub use trainee::{EvaluationOutput, Handle, MicroOutput, Pending, Results, Student, Trainee};
pub use validate::{Evaluation, evaluate_shard, merged};
pub use world::World;
pub use writer::Write;
