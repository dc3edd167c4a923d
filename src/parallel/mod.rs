//! Data-parallel training: a world of replicas on devices, and what they do together.
//!
//! Read `world.rs` for the topology, `collective.rs` for what replicas can do together, `local.rs` for how threads meet,
//! `message.rs` for what comes of it, `processes.rs` and `engine.rs` for other processes, `replica.rs` for the program
//! every replica runs, `overlap.rs` for what is sent while it computes, `strategy.rs` for how Burn's learner starts it,
//! `generation.rs` for hosts that come and go. The room knows no file and no terminal: it tells an [`Observer`].

pub mod collective;
mod config;
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
mod local;
mod message;
mod overlap;
mod plan;
mod processes;
mod remedy;
mod replica;
mod step;
mod strategy;
mod synchronization;
mod transfer;
mod tree;
mod validate;
mod world;

pub use config::{BackendKind, DistBackend, ParallelConfig, ReducePrecision, StrategyKind};
pub use device::{HostBackend, check_devices, check_precision};
pub use elastic::Elastic;
pub use events::{EpochReport, Observer, Position, StepReport, TrainingState};
pub use generation::{Assignment, Generation, GenerationReport, Held, Membership, Undisturbed};
pub use handle::LoaderHandle;
#[cfg(feature = "gloo")]
pub(crate) use local::PATIENCE;
pub use local::{LocalReplica, local_group, spanning_group};
pub use plan::{Plan, Sharing};
pub use processes::Processes;
pub use replica::{ReplicaModel, StartingPoint};
pub use strategy::DataParallel;
pub use world::World;
