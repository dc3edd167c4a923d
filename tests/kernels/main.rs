//! The kernels for processors, without a tensor library: against plain loops in f64, and the same bits on any number of
//! threads.

mod convolution;
#[path = "../noise.rs"]
mod noise;
mod passes;
mod winograd;

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
