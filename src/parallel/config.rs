//! What the user may choose about replicas and the devices that host them.
//!
//! The `[parallel]` section as it runs; `config/default.toml` documents it for users and the config room checks it.
//! Whether a device exists is left to the backend.

use serde::{Deserialize, Serialize};

/// The tensor library that computes.
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
    /// One replica, no communication.
    Single,
    /// The first replica averages the gradients, steps, and hands the weights to the others.
    Dp,
    /// Every replica averages the gradients and steps by itself.
    Ddp,
}

/// The type in which gradients travel between replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReducePrecision {
    /// As they are.
    F32,
    /// Rounded to half the bits; sums are f32.
    Bf16,
}

/// The `[parallel]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// Replicas of the experiment, at least 1.
    pub world_size: usize,
    /// Devices that host the replicas, each once, at most one per replica.
    pub gpu_ids: Vec<usize>,
    /// Rank of this process among processes; always 0, as all replicas live in one process.
    pub rank: usize,
    /// Images per replica and micro-batch, at least 1.
    pub batch_size: usize,
    /// The tensor library.
    pub backend: BackendKind,
    /// How replicas keep their weights equal; see [`ParallelConfig::strategy`].
    pub strategy: StrategyKind,
    /// Whether batch-norm takes its statistics over all replicas.
    pub sync_bn: bool,
    /// The type in which gradients travel between replicas.
    pub reduce_precision: ReducePrecision,
    /// Seconds a replica waits for the others in a collective, above 0; the first step has ten times as long.
    pub timeout: f64,
    /// Address where processes would meet; always empty, as all replicas live in one process.
    pub dist_url: String,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        Self {
            world_size: 1,
            gpu_ids: vec![0],
            rank: 0,
            batch_size: 32,
            backend: BackendKind::Auto,
            strategy: StrategyKind::Auto,
            sync_bn: true,
            reduce_precision: ReducePrecision::F32,
            timeout: 30.0,
            dist_url: String::new(),
        }
    }
}

impl ParallelConfig {
    /// The strategy that runs: never `Auto`.
    pub fn strategy(&self) -> StrategyKind {
        match self.strategy {
            StrategyKind::Auto if self.world_size == 1 => StrategyKind::Single,
            StrategyKind::Auto => StrategyKind::Ddp,
            chosen => chosen,
        }
    }
}
