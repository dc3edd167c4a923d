//! Data-parallel training of a Burn model: **the world size belongs to the experiment, the devices to the machine.**
//!
//! An experiment has a fixed number of replicas. A replica is a logical worker: it owns its shard of every global batch
//! and its position in every reduction. Devices only host replicas, so the same experiment gives the same numbers on
//! one device or on eight, and continues on others.
//!
//! Three things make a program: an [`Objective`] (samples, a batch on the device, the losses of a model), a [`Plan`]
//! (epochs, batch, learning rate, [`World`]), and a call of [`train`]. [`resumed`] adds checkpoints: the run goes on,
//! bit for bit, from the last one. A model may consist of Burn's layers; those of [`nn`] also synchronise batch-norm
//! over replicas and overlap the all-reduce with the backward pass. Who needs more than an objective gives, such as a
//! model in stages, implements [`Task`](parallel::Task). The folder `tests/examples` of the sources has whole programs
//! of 60 and 89 lines.
//!
//! | room | what it is |
//! |---|---|
//! | [`nn`] | layers, losses, initial weights, tensors by name |
//! | [`optim`] | update rules, schedule, loss scale, clipping, averages of weights |
//! | [`parallel`] | tasks, samples, collectives in memory, over Gloo and NCCL, replicas and their learner, stages, generations |
//! | [`checkpoint`] | atomic directories, retention, a run's directory and its lock |
//! | [`state`] | named tensors on the host |
//! | [`exact`] | numbers in JSON with all of their bits |
//!
//! # A batch, from the loader to the update
//!
//! ```text
//! sampler.rs     which samples, in which order            Shard { epoch, ids, copies, partners }
//!    |
//! loader.rs      a thread that works ahead                Task::fetch, Task::prepare; then Task::upload to the device
//!    |
//! passes.rs      each micro-batch: fresh leaves, forward  Task::forward, exchange.rs asks the other replicas
//!    |             the fence, backward                    Learner::train_step; with stages stage.rs, from one to the next
//!    |
//! reduction.rs   gradients of all replicas, one tree      on the device, each adds its part (sharding.rs); or overlap.rs,
//!    |                                                    with sums.rs over Gloo or NCCL
//!    |
//! outcome.rs     losses, counts, norm to the host         at once; on a GPU during the next step
//!    |
//! step.rs        those of all replicas, requests to stop  Collective::all_gather
//!    |             clipping                               from here on an elastic run waits for nobody
//!    |
//! learner.rs     the update                               Learner::optimizer_step: rules.rs, or an optimizer of Burn;
//!                                                         sharding.rs, if each replica updates a part of the weights
//! ```
//!
//! This crate knows neither images nor networks, command lines, terminals or how processes meet.

pub mod checkpoint;
pub mod exact;
pub mod nn;
pub mod optim;
pub mod parallel;
pub mod saved;
pub mod state;
mod supervised;

pub use kiln_ops::{TrainBackend, cast};
pub use kiln_system::{Error, Result};
pub use nn::{BatchNorm, ForwardContext, cross_entropy, initialize};
pub use parallel::{HostBackend, Objective, Plan, Split, World};
pub use saved::{Checkpoints, Resumed, resumed};
pub use supervised::train;
