//! The choices of a user about backends and how replicas stay equal.

use kiln_ops::Graph;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// The best one this binary was built with.
    Auto,
    /// Pure Rust on the CPU.
    Flex,
    /// LibTorch, on the CPU and on CUDA.
    Tch,
    /// NVIDIA GPUs through CubeCL.
    Cuda,
    /// Vulkan, Metal and DirectX 12.
    Wgpu,
}

/// How replicas keep their weights equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StrategyKind {
    /// `Single` for one replica, otherwise `Ddp`.
    Auto,
    Single,
    /// Every replica averages the gradients and updates its own weights.
    #[serde(alias = "dp")]
    Ddp,
}

/// The type in which gradients are sent between replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReducePrecision {
    /// Without rounding.
    F32,
    /// Rounded to bf16; sums are f32.
    Bf16,
}

/// The running statistics of batch-norm that a run keeps if each replica takes them of its own batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BnStatistics {
    /// The first replica's.
    First,
    /// The mean of all replicas'.
    Mean,
}

/// The collective engine between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DistBackend {
    /// Between processes [`DistBackend::Nccl`] if all devices are CUDA's and have it, else [`DistBackend::Gloo`]. In
    /// one process [`DistBackend::Local`], or [`DistBackend::Nccl`] for devices of CubeCL's CUDA, which do not share
    /// memory.
    Auto,
    Local,
    /// TCP, through the host's memory.
    Gloo,
    /// GPU to GPU; Gloo for the rest, if there are several processes.
    Nccl,
}

/// Whether steps are recorded on a device and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CudaGraph {
    /// [`CudaGraph::Off`], until a device has shown that it gains by it with the same bits.
    Auto,
    On,
    Off,
}

/// Makes a graph with nothing in it.
pub type NewGraph = fn() -> Result<Box<dyn Graph>, String>;

/// How a step is recorded, to be replayed: see `recording.rs`.
#[derive(Debug, Clone, Copy)]
pub enum Recorded {
    No,
    /// By what the backend has.
    ByDevice,
    /// By something else.
    By(NewGraph),
}

impl Recorded {
    pub(super) fn is_on(self) -> bool {
        !matches!(self, Self::No)
    }
}

/// Steps between two comparisons of the replicas' weights: seldom enough to cost less than 0.5 % of small steps.
pub const CHECK_EVERY: usize = 200;
