//! Backend-generic primitives that Burn lacks or that training a convolutional network must not be slow at.
//!
//! Each primitive is a trait over backends with a default body in Burn's own operations, faster bodies where a backend
//! offers them, and a hand-written backward for `Autodiff`. The room knows no model, no world and no thread: what a
//! primitive needs from other replicas comes through [`statistics::StatisticsGroup`].

mod batch_norm;
mod behind;
mod bridge;
mod conv;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod gradient;
mod host;
#[cfg(any(feature = "flex", feature = "tch"))]
mod host_norm;
#[cfg(any(feature = "flex", feature = "tch"))]
mod host_trim;
#[cfg(any(feature = "flex", feature = "tch"))]
mod host_update;
mod listener;
#[cfg(any(feature = "flex", feature = "tch"))]
mod pieces;
mod pool;
mod precision;
mod sliding;
pub mod statistics;
#[cfg(any(feature = "flex", feature = "tch"))]
mod sums;
#[cfg(feature = "tch")]
mod torch;
mod trim;
mod update;
#[cfg(any(feature = "flex", feature = "tch"))]
pub mod winograd;

pub use batch_norm::{BatchNormOps, BatchNormOutput, batch_norm, batch_norm_and, batch_norm_inference};
pub use behind::{Behind, Rectified};
pub use conv::{ConvOps, arranged, conv2d};
pub use gradient::GradientOps;
pub use host::{HostOps, is_timed, reading, settle, writing};
pub use listener::{GradientListener, Listened};
pub use pool::{PoolOps, Pooled, max_pool};
pub use precision::{
    BFloat16, ComputeBackend, Float16, Full, MixedBackend, Precision, PrecisionKind, across, down, up,
};
pub use sliding::{Algorithm, Sliding};
#[cfg(feature = "tch")]
pub use torch::cuda_devices;
pub use update::{Sgd, UpdateOps};

/// Everything a backend must be able to do to train Kiln's models.
pub trait TrainBackend: BatchNormOps + ConvOps + PoolOps {}

impl<B: BatchNormOps + ConvOps + PoolOps> TrainBackend for B {}
