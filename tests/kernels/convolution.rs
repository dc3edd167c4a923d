//! All three products of a convolution against its definition.

use std::mem::MaybeUninit;

use kiln_kernels::{Convolution, Geometry, ParallelFor, Trim};

use half::{bf16, f16};

use super::{Stored, alone, assert_close, assert_stored, backwards, noise, rounded};

/// `[batch, inputs, height, width]`, outputs, kernel, stride, padding: by both algorithms, and sizes that fill no
/// block.
const SIZES: [([usize; 4], usize, usize, usize, usize); 11] = [
    ([2, 3, 9, 7], 5, 3, 1, 1),
    ([3, 16, 8, 8], 16, 3, 1, 1),
    ([2, 20, 11, 6], 33, 3, 2, 1),
    ([1, 3, 23, 17], 18, 7, 2, 3),
    ([5, 64, 4, 4], 48, 1, 1, 0),
    ([4, 17, 6, 6], 16, 1, 2, 0),
    ([33, 32, 2, 2], 32, 3, 1, 1),
    ([3, 32, 13, 16], 48, 3, 2, 1),
    ([2, 16, 8, 15], 16, 3, 2, 1),
    ([5, 160, 7, 7], 144, 3, 2, 1),
    // More tiles than a block of the weight gradient has.
    ([65, 16, 7, 7], 1040, 3, 2, 1),
];

pub(super) fn written<T: Stored>(length: usize, write: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut values = vec![MaybeUninit::new(T::of(f32::NAN)); length];
    write(&mut values);
    // SAFETY: each value was initialised above.
    values.into_iter().map(|value| unsafe { value.assume_init() }).collect()
}

/// Input and gradient of the output, and kernels.
pub(super) fn values<T: Stored>(g: &Geometry) -> ([Vec<T>; 2], Vec<f32>) {
    let [pixels, outputs] = [g.size.iter().product(), g.pixels()].map(|pixels: usize| g.batch * pixels);
    let images = [noise(pixels * g.inputs, 1), noise(outputs * g.outputs, 3)].map(rounded);
    (images, noise(g.outputs * g.inputs * g.taps(), 2))
}

/// Output, gradient of the kernels and gradient of the input, in f64.
pub(super) fn definition<T: Stored>(g: &Geometry, images: &[T], gradient: &[T], weight: &[f32]) -> [Vec<f64>; 3] {
    let Geometry { batch, inputs, outputs, size: [height, width], kernel: [_, kernel], stride, padding, .. } = *g;
    let [rows, columns] = g.output();
    let wide = |value: T| f64::from(value.widened());
    let [mut y, mut dw, mut dx] = [gradient.len(), weight.len(), images.len()].map(|length| vec![0.0_f64; length]);
    for n in 0..batch {
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            for (ky, kx) in (0..g.kernel[0]).flat_map(|ky| (0..kernel).map(move |kx| (ky, kx))) {
                let (iy, ix) = (row * stride + ky, column * stride + kx);
                if iy < padding || ix < padding || iy - padding >= height || ix - padding >= width {
                    continue;
                }
                let image = ((n * height + iy - padding) * width + ix - padding) * inputs;
                let pixel = ((n * rows + row) * columns + column) * outputs;
                for (o, i) in (0..outputs).flat_map(|o| (0..inputs).map(move |i| (o, i))) {
                    let tap = ((o * inputs + i) * g.kernel[0] + ky) * kernel + kx;
                    y[pixel + o] += wide(images[image + i]) * f64::from(weight[tap]);
                    dw[tap] += wide(images[image + i]) * wide(gradient[pixel + o]);
                    dx[image + i] += wide(gradient[pixel + o]) * f64::from(weight[tap]);
                }
            }
        }
    }
    [y, dw, dx]
}

#[test]
fn products_are_those_of_the_definition_and_do_not_depend_on_threads() {
    products::<f32>();
    products::<bf16>();
    products::<f16>();
}

fn products<T: Stored>() {
    for (x, outputs, kernel, stride, padding) in SIZES {
        let [batch, inputs, height, width] = x;
        let geometry = |parallel_for: ParallelFor| {
            let (size, kernel) = ([height, width], [kernel; 2]);
            Geometry { batch, inputs, outputs, size, kernel, stride, padding, parallel_for }
        };
        let ([images, gradient], weight) = values::<T>(&geometry(alone));
        let [y, dw, dx] = definition(&geometry(alone), &images, &gradient, &weight);
        for is_direct in [false, true] {
            let products = |threads: ParallelFor| {
                // A matrix unit has a test of its own.
                let plan = Convolution::new(geometry(threads), is_direct).on(None);
                let output = written::<T>(y.len(), |output| plan.forward(&images, &weight, None, output));
                let input = written::<T>(dx.len(), |output| plan.input_gradient(&weight, &gradient, output));
                (output, written(dw.len(), |output| plan.weight_gradient(&images, &gradient, output)), input)
            };
            let found = products(alone);
            let what = format!("{x:?} to {outputs}, kernel {kernel}, direct {is_direct}");
            assert_stored(&found.0, &y, &what);
            assert_close(&found.1, &dw, &what);
            assert_stored(&found.2, &dx, &what);
            assert!(products(backwards) == found, "other bits on other threads for {x:?} to {outputs}");
        }
    }
}

#[test]
fn a_trimmed_kernel_has_what_lies_on_the_image() {
    let trim = Trim::of([8, 2, 1, 1], [3, 2, 3, 3], 1, 1).expect("one pixel meets one of nine");
    assert_eq!((trim.part(), trim.rows.clone(), trim.columns.clone()), ([3, 2, 1, 1], 1..2, 1..2));
    let whole: Vec<f32> = (0..54).map(|value| value as f32).collect();
    let part = written(6, |part| trim.crop(&whole, part, alone));
    assert_eq!(part, [4.0, 13.0, 22.0, 31.0, 40.0, 49.0]);
    let back = written(54, |whole| trim.pad(&part, whole, backwards));
    assert!(back.iter().zip(&whole).enumerate().all(|(i, (back, from))| *back == if i % 9 == 4 { *from } else { 0.0 }));
    assert!(Trim::of([8, 2, 3, 3], [3, 2, 3, 3], 1, 1).is_none());
}
