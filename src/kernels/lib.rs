//! Kernels of convolutional networks for processors: loops over slices in the host's memory.
//!
//! What is here has the same bits on every instruction set and with any number of threads: all sets execute one order
//! of operations ([`Set`]), and work is split by the sizes alone. Images are `[batch, height, width, channels]`, f32
//! or, in batch-norm, bf16; the caller brings the memory and, as a [`ParallelFor`], the threads.
//!
//! - [`Convolution`]: the three products of a convolution, by Winograd's algorithm (`winograd`) where it applies, else
//!   by the definition (`direct`).
//! - [`BatchNorm`]: statistics, gradients, and the [`Epilogue`] that may follow a convolution while its output is in a
//!   cache.
//! - [`update`]: one pass of SGD or AdamW over parameters, sums and norms.
//! - `trim`: kernels without the parts that only meet padding.
//! - `vector`: sixteen lanes on each instruction set, on which all products are written.
//!
//! This crate knows no tensor library, network or device.

mod batch_norm;
mod convolution;
mod direct;
mod epilogue;
mod halves;
mod pieces;
mod trim;
pub mod update;
mod vector;
mod winograd;

pub use batch_norm::BatchNorm;
pub use convolution::Convolution;
pub use direct::Geometry;
pub use epilogue::{Activation, Epilogue};
pub use halves::{Half, LEAST_ROUNDED, half_of, widened};
pub use pieces::ParallelFor;
pub use trim::Trim;
pub use vector::{F32Memory, LANES, Set, transpose, vectorized};
pub use winograd::Winograd;
