//! Data-parallel training: a world of replicas on devices, and their collectives.
//!
//! - What is trained: `task.rs`; on which samples: `sampler.rs`; where: `world.rs`.
//! - A run: `strategy.rs` is the strategy for Burn's learner, `coordinator.rs` hears its replicas, `generation.rs` is
//!   elastic membership.
//! - A replica: `set_up.rs` makes it and chooses its parts, `replica.rs` is its program, `step.rs` one step of it,
//!   `passes.rs` the forward and backward passes, `recomputation.rs` those that keep little, `reduction.rs` the sums of
//!   gradients, `sharding.rs` the update in parts, `message.rs` what workers tell each other, `epoch.rs` the end of an
//!   epoch, `divergence.rs` the comparison of replicas, `recording.rs` steps that a device replays and `recorded_step.rs`
//!   one of them, `stage.rs` the place among the stages of a model, `work.rs` the time of a step that is
//!   not spent waiting for others.
//! - Collectives: `collective.rs`, by names of `key.rs`; `threads.rs` within a process, `processes.rs` between
//!   processes by the engines of `engine.rs`; `sums.rs` orders sums, `tensors.rs` computes them.
//!
//! This room knows neither networks, images, files nor terminals: it gets a [`Task`] and reports to an [`Observer`].

mod accumulation;
mod batches;
mod checksum;
mod collective;
mod config;
mod coordinator;
mod counts;
mod device;
mod divergence;
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
#[cfg(any(feature = "cuda", test))]
mod kernels;
mod key;
mod learner;
mod loader;
mod message;
mod micro_batch_group;
pub mod nccl;
mod objective;
mod outcome;
mod overlap;
mod passes;
mod plan;
mod position;
mod probe;
mod processes;
mod recomputation;
mod recorded_step;
mod recording;
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
mod task_model;
mod tensors;
mod threads;
mod timing;
mod tree;
mod validate;
mod wire;
mod work;
mod world;
mod writer;

pub use collective::{Collective, local_group};
pub use config::{
    BackendKind, BnStatistics, CHECK_EVERY, CudaGraph, DistBackend, NewGraph, Recorded, ReducePrecision, StrategyKind,
};
pub use counts::{COUNTED, Counts};
pub use device::{HostBackend, check_devices, check_graph, check_precision};
pub use events::{EpochReport, GenerationReport, Observer, StepReport};
pub use generation::{Assignment, Generation, GenerationResult, Membership, Undisturbed};
pub use key::{Broken, Key, Operation};
pub use kiln_ops::statistics::{Combine, Payload};
pub use learner::{Components, LearningRate, TaskLearner, UpdateRule};
pub use loader::{Loader, Shard};
pub use objective::Objective;
pub use outcome::Sums;
pub use plan::Plan;
pub use position::{Position, StartingPoint, TrainingState};
pub use probe::{Observation, Observed, Probe, first_difference};
pub use processes::{Devices, Links, Processes, StageEngine};
pub use remedy::{memory_error, words};
pub use sampler::{Group, MicroBatch, Sampler, SamplerConfig, validation_batches, validation_place};
pub use sharding::{all_gather, reduce_scatter};
pub use stage::{Turn, ahead, cut, turns};
pub use strategy::DataParallel;
pub use sums::Share;
pub use task::{Activations, Evaluated, Foresight, Losses, Passage, Passed, Split, Task, Unit, fetch, unit_of};
pub use task_model::{Handle, MicroOutput, Pending, Results, TaskModel, TrainingModel};
pub use threads::PATIENCE;
pub use timing::{Times, Timing, time_copy, time_units};
pub use validate::{Evaluation, evaluate_shard, merged};
pub use work::Work;
pub use world::World;
pub use writer::Write;

// For the files of this room.
use checksum::Checksum;
use engine::{DeviceEngine, Mark, Symptom};
use learner::Recipe;
use overlap::Early;
use processes::Peers;
use replica::{Ended, Event, Replica};
use stage::{ModelPart, Stage};
use task_model::Micro;
use work::{Wait, waiting};
use writer::Slot;
