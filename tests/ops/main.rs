//! The primitives against plain loops in f64, over sizes that fit no block, and their independence of threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]
#![allow(dead_code, reason = "the other binaries share helpers with this one")]

#[path = "../backends.rs"]
#[macro_use]
mod backends;

mod affine;
mod batch_norm;
#[path = "../compiled.rs"]
mod compiled;
mod conv;
mod cudnn;
#[cfg(feature = "wgpu")]
mod driver;
mod fences;
#[path = "../files.rs"]
mod files;
#[cfg(feature = "flex")]
mod flex;
mod images;
mod kernels;
#[cfg(feature = "wgpu")]
mod launches;
#[path = "../noise.rs"]
mod noise;
mod pool;
#[path = "../skipped.rs"]
mod skipped;
mod streams;

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData, bf16, f16};
use kiln_ops::Precision;
use noise::noise;

fn tensor<B: Backend, const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Default::default())
}

fn to_vec<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// The nearest values that a precision has.
fn rounded(values: Vec<f32>, precision: Precision) -> Vec<f32> {
    let round: fn(f32) -> f32 = match precision {
        Precision::F32 => |value| value,
        Precision::Bf16 => |value| bf16::from_f32(value).to_f32(),
        Precision::F16 => |value| f16::from_f32(value).to_f32(),
    };
    values.into_iter().map(round).collect()
}

/// Asserts agreement to `tolerance` of the largest expected value.
#[track_caller]
fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    let scale = expected.iter().fold(1e-6, |most: f64, value| most.max(value.abs()));
    let off = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    let finite = found.iter().all(|value| value.is_finite());
    assert!(finite && off <= tolerance * scale, "{what}: {:.1e} of the largest value off", off / scale);
}

/// Runs `compute` in rayon pools of 1, 2 and 3 threads and asserts that not a bit differs.
#[cfg(feature = "flex")]
fn assert_independent_of_threads(compute: impl Fn() -> Vec<f32> + Sync) {
    let run = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&compute);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let one = bits(run(1));
    for threads in [2, 3] {
        assert!(bits(run(threads)) == one, "{threads} threads give other bits than one");
    }
}
