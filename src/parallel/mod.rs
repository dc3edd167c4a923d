//! Data-parallel training: a world of replicas on devices, and what they do together.
//!
//! Read `world.rs` for the topology, `collective.rs` for what replicas can do together and `local.rs` for how threads
//! do it, `replica.rs` for the program every replica runs, `strategy.rs` for how Burn's learner starts it. The room
//! knows no file and no terminal: it tells an [`Observer`].

pub mod collective;
mod config;
mod device;
mod epoch;
mod events;
mod handle;
mod local;
mod plan;
mod replica;
mod step;
mod strategy;
mod synchronization;
mod transfer;
mod world;

pub use config::{BackendKind, ParallelConfig, ReducePrecision, StrategyKind};
pub use device::{HostBackend, check_devices, check_precision};
pub use events::{EpochReport, Observer, Position, StepReport, TrainingState};
pub use handle::LoaderHandle;
pub use local::{LocalReplica, local_group};
pub use plan::{Plan, Sharing};
pub use replica::{ReplicaModel, StartingPoint};
pub use strategy::DataParallel;
pub use world::World;
