//! Convolutions by the definition on the CPU: f32 loops over NHWC images, for kernels, strides and paddings of any
//! size.
//!
//! Read `tile.rs` for the inner loop of all products, `gather.rs` and `weight_gradient.rs` for its tables,
//! `geometry.rs` for the rule that makes results independent of threads.

mod copy;
mod gather;
mod geometry;
mod lanes;
mod planes;
mod tile;
mod weight_gradient;

pub(super) use gather::{forward, input_gradient};
pub use geometry::Geometry;
pub(super) use lanes::Lanes;
pub(super) use weight_gradient::weight_gradient;
