//! Data-parallel training: a world of replicas on devices, and what they do together.
//!
//! Read `task.rs` for what can be trained, `sampler.rs` for the order of samples, `world.rs` for the topology,
//! `collective.rs` for what replicas can do together, `local.rs` for how threads meet, `combine.rs` for what comes
//! of it, `processes.rs` and `engine.rs` for other processes, `replica.rs` for the program every replica runs,
//! `trainee.rs` for its forward and backward pass, `overlap.rs` for what is sent while it computes, `strategy.rs` for how
//! Burn's learner starts it, `generation.rs` for hosts that come and go. The room knows no network and no image, no file
//! and no terminal: it is given a [`Task`] and tells an [`Observer`].

pub mod collective;
mod combine;
mod config;
mod counts;
mod device;
#[cfg(feature = "cuda")]
mod driver;
mod elastic;
mod ending;
pub mod engine;
mod epoch;
mod events;
mod generation;
#[cfg(feature = "gloo")]
pub mod gloo;
mod handle;
mod learner;
mod loader;
mod local;
mod message;
mod overlap;
mod plan;
mod position;
mod processes;
mod reduction;
mod remedy;
mod replica;
mod sampler;
mod step;
mod strategy;
mod synchronization;
mod task;
mod trainee;
mod transfer;
mod tree;
mod validate;
mod world;

pub use config::{BackendKind, DistBackend, ParallelConfig, ReducePrecision, StrategyKind};
pub use counts::{COUNTED, Counts};
pub use device::{HostBackend, check_devices, check_precision};
pub use elastic::Elastic;
pub use events::{EpochReport, GenerationReport, Observer, StepReport};
pub use generation::{Assignment, Generation, Held, Membership, Undisturbed};
pub use handle::LoaderHandle;
pub use learner::{Components, LearningRate, Student, TaskLearner, UpdateRule};
pub use loader::{Loader, Shard};
#[cfg(feature = "gloo")]
pub(crate) use local::PATIENCE;
pub use local::{LocalReplica, local_group, spanning_group};
pub use plan::Plan;
pub use position::{Position, StartingPoint, TrainingState};
pub use processes::Processes;
pub use reduction::sum_here;
pub use sampler::{Group, MicroBatch, Sampler, SamplerConfig, validation_batches, validation_place};
pub use strategy::DataParallel;
pub use task::{Evaluated, Losses, Split, Task, fetch};
pub use trainee::{Evaluation, Fence, Handle, Micro, MicroOutput, Trainee};
pub use validate::{evaluate_shard, merged};
pub use world::World;
