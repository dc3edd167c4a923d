//! Backend-generic primitives that Burn lacks or computes too slowly for training convolutional networks.
//!
//! Each primitive is a trait over backends with a default body in Burn's own operations, faster bodies for some
//! backends ([`kiln_kernels`] on processors), and a hand-written backward for `Autodiff`. The room knows no model,
//! world or thread: values of other replicas come through [`statistics::StatisticsGroup`].
//!
//! Its interface has more than forty names, since each primitive has two: the trait, for who adds a backend, and the
//! function over tensors, for who writes a model.

#[cfg(any(feature = "cuda", feature = "wgpu", test))]
mod agreement;
mod batch_norm;
mod batch_norm_backward;
mod branch;
mod conv;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod cube;
mod cut;
mod epilogue;
mod exchange;
#[cfg(feature = "flex")]
mod flex;
mod gradient;
mod graph;
mod host;
pub mod images;
mod node;
pub mod nvidia;
mod pool;
mod precision;
mod sliding;
pub mod statistics;
#[cfg(feature = "tch")]
mod torch;
mod traffic;
mod transfer;
mod trim;
mod update;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorPrimitive};

pub use batch_norm::{BatchNormOps, BatchNormOutput, batch_norm, inference_factors, normalize, swapped};
pub use branch::{BranchOps, add_branch};
pub use conv::{ConvOps, GradientListener, ParameterListener, PreparedKernel, arranged, conv2d, conv2d_normalized};
#[cfg(feature = "cuda")]
pub use cube::use_cudnn;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub use cube::use_one_stream;
pub use cut::{Awaited, cut, leaf};
pub use epilogue::{Epilogue, ReluState};
pub use gradient::GradientOps;
pub use graph::Graph;
pub use host::{ARENA_ALIGNMENT, Fence, HostOps, Later, Memory, Shared, is_timed, release_freed, settle};
pub use images::ImageOps;
pub use node::watched;
pub use pool::{PoolOps, Pooled, max_pool, mean_of_pixels};
pub use precision::{Precision, as_type, cast};
pub use sliding::{Algorithm, Sliding};
#[cfg(all(feature = "tch", target_os = "linux"))]
pub use torch::bound_spinning;
#[cfg(feature = "tch")]
pub use torch::{GRAPH_SYMBOLS, choose_kernels, cuda_devices, cuda_graph, has_instructions};
pub use traffic::{BetweenSteps, Traffic, reading, traffic};
pub use transfer::{download, download_each, from_values, upload, with_values};
pub use update::{AdamW, Lars, Sgd, UpdateOps};

pub fn tensor<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

/// The inverse of [`tensor`].
pub fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// All primitives that Kiln's models need of a backend.
pub trait TrainBackend: BatchNormOps + BranchOps + ConvOps + PoolOps {}

impl<B: BatchNormOps + BranchOps + ConvOps + PoolOps> TrainBackend for B {}
