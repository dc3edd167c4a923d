//! Kernels of convolutional networks for processors: loops over slices in the host's memory.
//!
//! What is here has the same bits on every instruction set and with any number of threads: all sets execute one order
//! of operations ([`Set`]), and work is split by the sizes alone. Images are `[batch, height, width, channels]` of
//! f32, bf16 or f16 ([`Activation`]); arithmetic is f32, except that a [`MatrixUnit`] multiplies bf16, in an order of its
//! own. The caller brings the memory and, as a [`ParallelFor`], the threads.
//!
//! - [`Convolution`]: the three products of a convolution, on a matrix unit (`amx`) where there is one, else by
//!   Winograd's algorithm (`winograd`) where it applies, else by the definition (`direct`).
//! - [`BatchNorm`]: statistics, gradients, and the [`Epilogue`] that may follow a convolution while its output is in a
//!   cache.
//! - [`update`]: one pass of SGD or AdamW over parameters, sums and norms.
//! - `trim`: kernels without the parts that only meet padding.
//! - `vector`: sixteen lanes on each instruction set, on which all products are written.
//!
//! This crate knows no tensor library, network or device.

mod activation;
mod amx;
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

pub use activation::{Activation, narrow};
pub use amx::MatrixUnit;
pub use batch_norm::BatchNorm;
pub use convolution::Convolution;
pub use direct::Geometry;
pub use epilogue::Epilogue;
pub use halves::{Half, LEAST_ROUNDED};
pub use pieces::ParallelFor;
pub use trim::Trim;
pub use vector::{LANES, Memory, Set, transpose, vectorized};
pub use winograd::Winograd;
