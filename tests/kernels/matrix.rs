//! Convolutions of bf16 on a matrix unit, by its emulation: against the definition, and the same bits with any number of
//! threads and beside any images.

use half::bf16;
use kiln_kernels::{Convolution, Geometry, MatrixUnit, ParallelFor};

use super::convolution::{definition, values, written};
use super::{alone, assert_close, assert_stored, backwards};

/// `[batch, inputs, height, width]`, outputs, kernel, stride, padding: sizes that fill no block, rows of the copy that
/// are longer and shorter than the image's, and batches of one group and of many.
const SIZES: [([usize; 4], usize, usize, usize, usize); 17] = [
    ([3, 32, 9, 7], 64, 3, 1, 1),
    ([33, 64, 4, 4], 32, 3, 1, 1),
    ([2, 32, 1, 1], 32, 3, 1, 1),
    ([2, 32, 2, 3], 32, 3, 2, 1),
    ([2, 96, 11, 6], 32, 3, 2, 1),
    ([3, 32, 8, 8], 32, 3, 2, 1),
    ([1, 32, 23, 17], 32, 7, 2, 3),
    ([5, 64, 4, 4], 96, 1, 1, 0),
    ([1, 64, 5, 5], 32, 1, 1, 0),
    ([4, 32, 7, 6], 64, 1, 2, 0),
    ([2, 32, 8, 9], 32, 3, 3, 1),
    ([2, 32, 1, 3], 32, 1, 2, 0),
    ([2, 32, 4, 5], 32, 2, 1, 1),
    // Weight gradients of several rounds, and more than the stretches of one part.
    ([67, 32, 6, 5], 32, 3, 1, 1),
    ([33, 32, 9, 8], 32, 1, 1, 0),
    // Groups that are copied by tasks of their own.
    ([9, 32, 66, 65], 32, 3, 3, 1),
    // Pixels of several groups, the last of which is smaller than a block.
    ([3, 32, 53, 52], 32, 1, 1, 0),
];

fn geometry(size: ([usize; 4], usize, usize, usize, usize), parallel_for: ParallelFor) -> Geometry {
    let ([batch, inputs, height, width], outputs, kernel, stride, padding) = size;
    let (size, kernel) = ([height, width], [kernel; 2]);
    Geometry { batch, inputs, outputs, size, kernel, stride, padding, parallel_for }
}

fn plan(geometry: Geometry) -> Convolution {
    Convolution::new(geometry, false).on(Some(MatrixUnit::Emulated))
}

#[test]
fn products_are_those_of_the_definition_with_kernels_in_bf16() {
    for size in SIZES {
        let g = geometry(size, alone);
        let ([images, gradient], weight) = values::<bf16>(&g);
        let near: Vec<f32> = weight.iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
        let [y, dw, dx] = definition(&g, &images, &gradient, &near);
        let products = |threads: ParallelFor| {
            let plan = plan(geometry(size, threads));
            let output = written::<bf16>(y.len(), |output| plan.forward(&images, &weight, None, output));
            let input = written::<bf16>(dx.len(), |output| plan.input_gradient(&weight, &gradient, output));
            (output, input, written(dw.len(), |output| plan.weight_gradient(&images, &gradient, output)))
        };
        let found = products(alone);
        assert_stored(&found.0, &y, &format!("output of {size:?}"));
        assert_stored(&found.1, &dx, &format!("input gradient of {size:?}"));
        assert_close(&found.2, &dw, &format!("weight gradient of {size:?}"));
        assert!(products(backwards) == found, "other bits on other threads for {size:?}");
    }
}
