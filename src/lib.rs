//! # Kiln
//!
//! Trains ResNets data-parallel on the Burn framework, under one idea: **the world size belongs to the experiment,
//! the devices to the machine.** `--world-size W` says how many replicas an experiment has. A replica is a logical
//! worker: it owns its shard of every global batch and its place in every reduction. Devices only host replicas, so
//! the same experiment gives the same numbers on one device or on eight, and resumes anywhere.
//!
//! How to use it: the [`guide`]. How it is built: below.
//!
//! ## Map
//!
//! Data flows down this list; a room imports only rooms above it. What each room must *not* know keeps it simple.
//!
//! | room | what it is | must not know |
//! |---|---|---|
//! | [`error`], [`stop`], [`state`], [`fetch`], `file` | the error that crosses rooms; why a run ends early; named tensors on the host; files from the network; files of others and how large they may be | anything else |
//! | [`ops`] | backend-generic primitives: synchronised batch-norm with what follows it, convolution, pooling, weight update, mixed precision; kernels for `flex` and LibTorch, Winograd's for both | models, threads |
//! | [`nn`] | what networks are made of: layers, losses, initial weights, tensors by name | architectures, replicas, files |
//! | [`optim`] | update rules, schedule, loss scaling, clipping, weight averaging | models, replicas |
//! | [`parallel`] | the engine: tasks, the order of samples, world, collectives in memory and over Gloo, the replica and its learner, the strategy, generations | networks, images, files, terminals |
//! | [`data`] | images, augmentation, batches of them | networks, devices |
//! | [`model`] | ResNet-18 and 34, what their logits say | data sets, files |
//! | [`launch`] | who this process is, the rendezvous, its one membership for fixed and elastic jobs, `train launch` | models, a run's files |
//! | [`weights`] | weights of others, in and out: PyTorch's files, torchvision's, ONNX | models, devices |
//! | [`checkpoint`] | atomic directories, retention, run directories and their locks | tensors' meaning |
//! | [`metrics`] | records and where they go, TensorBoard among it; where time went; warnings | models |
//! | [`report`] | a run's directory as a page for people | models, how a run is made |
//! | [`study`] | measured runs of several sizes, compared and modelled; a rate and a batch size out of short runs | how a run is made |
//! | [`config`] | layers of settings, merged and checked | what the settings do |
//! | [`trainer`] | the task (images to classify), the story: prepare, train, resume, evaluate; many runs as a sweep | how any of it works inside |
//! | [`cli`] | flags to settings, arguments to commands | what the commands do |
//!
//! ## A batch, from the loader to the update
//!
//! ```text
//! sampler.rs     which samples, in which order            Shard { epoch, ids, copies, partners }
//!    |
//! loader.rs      a thread that works ahead                Task::fetch -> Task::batch -> Task::Input, on the device
//!    |
//! step.rs        each micro-batch: fresh leaves           Learner::train_step
//!    |             trainee.rs: forward, fence, backward   Task::losses, batch_norm.rs asks the other replicas
//!    |
//! step.rs        losses of all replicas, who stops        Collective::all_gather
//!    |
//! reduction.rs   gradients of all replicas, one tree      on the device, or overlap.rs and processes.rs over Gloo
//!    |
//! step.rs        norm, clipping                           then nothing waits for others any more
//!    |
//! learner.rs     the update                               Learner::optimizer_step: rules.rs, or an optimizer of Burn's
//! ```
//!
//! ## A flag, from the argument to its effect
//!
//! ```text
//! cli/options.rs --learning-rate 0.1      config/flag.rs: its key, optim.learning_rate
//!    |
//! config/layers.rs                        defaults < files < groups < environment < KEY=VALUE < flags
//!    |
//! config/resolve.rs                       one Config, checked by rules.rs, or every complaint at once
//!    |
//! trainer/run.rs                          the story; prepare.rs makes of it a Plan (parallel) and a task
//!    |
//! parallel/plan.rs                        Schedule, OptimConfig: what replicas read
//! ```
//!
//! How precision becomes a type: `ops/precision.rs`. How processes meet and part: `launch/job.rs`; how they come and go:
//! `parallel/generation.rs`, `launch/rendezvous/roster/mod.rs`, `trainer/elastic.rs`.
//!
//! ## Invariants
//!
//! - Random numbers are keyed by (seed, epoch, sample, purpose) or (seed, tensor name), never by rank, thread or device.
//! - A gradient is the mean over the *samples* of an optimizer step, whatever their distribution over replicas and
//!   micro-batches; a replica without a sample takes part in every collective with weight zero.
//! - Collectives are matched by key and none waits without a limit. Sums are taken in a fixed tree over replica ids: in
//!   one process always, over several with `--deterministic`.
//! - Who is lost is decided once, by the rendezvous; an engine's error is a symptom.
//! - In an elastic run a step's collectives come before its update, and nobody updates without a lease: a step is done
//!   by all or by none.
//! - Two rules keep Burn's autodiff graph from losing gradients under threads (tracel-ai/burn #5573): fresh leaves
//!   before every forward, and no backward beside a forward. They are marked in `parallel/step.rs`, the fence between
//!   them in `parallel/trainee.rs`.
//! - Weights, optimizer, statistics and loss are f32 in every precision; a tensor's type is named where it is cast.
//! - A position in a run is integers; a checkpoint holds everything a resumed run needs to go on bit for bit.
//! - Nothing visible is ever half-written: files appear by rename.

pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod error;
pub mod fetch;
mod file;
pub mod guide;
pub mod launch;
pub mod metrics;
pub mod model;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod parallel;
pub mod report;
pub mod state;
pub mod stop;
pub mod study;
pub mod trainer;
pub mod weights;
