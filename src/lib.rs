//! # Kiln
//!
//! Trains ResNets data-parallel on the Burn framework, under one idea: **the world size belongs to the experiment,
//! the devices to the machine.** `--world-size W` says how many replicas an experiment has. A replica is a logical
//! worker: it owns its shard of every global batch and its position in every reduction. Devices only host replicas, so
//! the same experiment gives the same numbers on one device or on eight, and resumes on other devices.
//!
//! How to use it: the [`guide`]. How it is built: below.
//!
//! ## Map
//!
//! Kiln is a workspace. Its crates below the application, each with a front page of its own:
//!
//! | crate | what it is | must not know |
//! |---|---|---|
//! | [`kiln_system`] | errors with exit codes, requests to stop, files read within bounds | anything else |
//! | [`kiln_objects`] | downloads and object stores | what files hold |
//! | `kiln_kernels` | convolutions, batch-norm and updates for processors, on slices | Burn |
//! | [`kiln_membership`] | launchers' ranks, `train launch`, the rendezvous and its policy | tensors, models, files of a run |
//! | [`kiln_ops`] | primitives that are generic over backends: synchronised batch-norm with what follows it, convolution, pooling, weight update, mixed precision; kernels for CubeCL, and those of `kiln_kernels` on `flex` and LibTorch | models, threads |
//! | [`kiln_engine`] | data-parallel training of any model: tasks, replicas, collectives, optimizers, checkpoints | images, networks, terminals, how processes meet |
//! | [`kiln_data`] | images from files, folders, shards, Parquet files and packs; augmentation, batches | networks, devices |
//! | [`kiln_training`] | ResNets that classify images, on every backend, behind two traits without type parameters | command lines, settings, terminals |
//!
//! The application has these rooms; data flows down this list, and a room imports only rooms above it.
//!
//! | room | what it is | must not know |
//! |---|---|---|
//! | [`weights`] | import and export of weights: PyTorch's files, torchvision's, ONNX | models, devices |
//! | [`metrics`] | records and their outputs, TensorBoard among them; profiling; warnings | models |
//! | [`report`] | a run's directory as a web page | models, how a run is made |
//! | [`serve`] | that page over HTTP, with buttons | how a run is made |
//! | [`mlflow`] | a run's records on an MLflow server | how a run is made |
//! | [`study`] | analysis of scaling measurements; a learning rate and a batch size from short runs; the placement of replicas and stages | how a run is made |
//! | [`config`] | layers of settings, merged and checked | what the settings do |
//! | [`launch`] | how this process takes part: fixed and elastic membership over Gloo | models, a run's files |
//! | [`trainer`] | the commands: prepare, train, resume, evaluate, sweep | how the rooms above work inside |
//! | [`cli`] | flags to settings, arguments to commands that run | how the commands do their work |
//!
//! The front page of [`kiln_engine`] follows a batch from the loader to the update; this one follows a flag.
//!
//! ## A flag, from the argument to its effect
//!
//! ```text
//! cli/options.rs --learning-rate 0.1      config/flag.rs: its key, optim.learning_rate
//!    |
//! config/layers.rs                        defaults < implied < files < groups < environment < KEY=VALUE < flags
//!    |
//! config/resolve.rs                       one Config, checked by rules.rs, or all errors at once
//!    |
//! trainer/run.rs                          the training; prepare.rs makes a Plan (engine) and a task
//!    |
//! engine/parallel/plan.rs                 Schedule, OptimConfig, for all replicas
//! ```
//!
//! Mixed precision: `ops/precision.rs`. Several processes: `launch/fixed_member.rs`; with elastic membership:
//! `launch/elastic_member.rs`, `membership/rendezvous/roster/mod.rs`, `engine/parallel/generation.rs`,
//! `trainer/elastic.rs`.
//!
//! ## Invariants
//!
//! - Random numbers are keyed by (seed, epoch, sample, purpose) or (seed, tensor name), never by rank, thread or
//!   device.
//! - A gradient is the mean over the *samples* of an optimizer step, whatever their distribution over replicas and
//!   micro-batches; a replica without a sample takes part in every collective with weight zero.
//! - Collectives are matched by key and none waits without a limit. Sums are taken in a fixed tree over replica ids: in
//!   one process always, over several with `--deterministic`.
//! - The rendezvous alone decides which process is lost; an engine's error is a symptom.
//! - In an elastic run a step's collectives come before its update, and no replica updates without a lease: a step is
//!   done by all or by none.
//! - Two rules keep Burn's autodiff graph from losing gradients under threads (tracel-ai/burn #5573): fresh leaves
//!   before every forward, and no backward during a forward. They are marked in `engine/parallel/passes.rs`.
//! - Weights, optimizer, statistics and loss are f32 in every precision; a tensor's type is named where it is cast.
//! - The position of a run is integers; with a checkpoint a run continues bit for bit.
//! - A state is saved only if all replicas hold the same bits, and by a thread of its own, one at a time.
//! - No file is ever visible half-written: files appear by rename.

pub mod cli;
pub mod config;
pub mod guide;
pub mod launch;
pub mod metrics;
pub mod mlflow;
pub mod report;
pub mod serve;
pub mod study;
pub mod trainer;
pub mod weights;
