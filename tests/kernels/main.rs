//! The kernels for processors, without a tensor library: against plain loops in f64, and the same bits on any number of
//! threads.

mod convolution;
mod matrix;
#[path = "../noise.rs"]
mod noise;
mod passes;
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#[path = "../skipped.rs"]
mod skipped;
mod winograd;

use half::{bf16, f16};
use kiln_kernels::Activation;
use noise::noise;

fn alone(count: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..count).for_each(work);
}

/// On three threads, the last tasks first.
fn backwards(count: usize, work: &(dyn Fn(usize) + Sync)) {
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || (thread..count).step_by(3).rev().for_each(work));
        }
    });
}

fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    let scale = expected.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - expected).abs() / scale;
        assert!(off < 1e-5, "{what}, value {place}: {found} instead of {expected}");
    }
}

/// The nearest values of a type.
fn rounded<T: Activation>(values: Vec<f32>) -> Vec<T> {
    values.into_iter().map(T::of).collect()
}

/// That sums in f32 are near to `expected`, and rounded once to a type whose spacing at one is twice `UNIT`.
fn assert_stored<T: Stored>(found: &[T], expected: &[f64], what: &str) {
    let scale = expected.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let found = f64::from(found.widened());
        let sum = 1e-5 * scale;
        let bound = sum + T::UNIT * (expected.abs() + sum);
        assert!((found - expected).abs() <= bound, "{what}, value {place}: {found} instead of {expected}");
    }
}

/// A type of activations with the most that rounding changes a value, relative to it.
trait Stored: Activation + PartialEq + std::fmt::Debug {
    const UNIT: f64;

    fn bits(self) -> u32;
}

impl Stored for f32 {
    const UNIT: f64 = 1.0 / (1 << 24) as f64;

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Stored for bf16 {
    const UNIT: f64 = 1.0 / (1 << 8) as f64;

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Stored for f16 {
    const UNIT: f64 = 1.0 / (1 << 11) as f64;

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}
