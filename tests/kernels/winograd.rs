//! 3x3 convolutions by tiles: the same bits on every instruction set, with any number of threads and beside any images.

use kiln_kernels::{Epilogue, ParallelFor, Set, Winograd};

use half::{bf16, f16};

use super::{Stored, alone, backwards, noise, rounded};

/// `[batch, inputs, height, width]`, outputs and stride.
type Size = ([usize; 4], usize, usize);

/// Sizes that fill no block, and those that take each of the plans.
const SIZES: [Size; 15] = [
    ([1, 16, 3, 3], 16, 1),
    ([33, 16, 3, 4], 48, 1),
    ([2, 32, 7, 7], 16, 1),
    ([3, 48, 9, 13], 32, 1),
    ([1, 16, 57, 57], 64, 1),
    ([2, 16, 57, 3], 32, 1),
    ([5, 64, 16, 12], 16, 1),
    ([9, 144, 4, 4], 160, 1),
    // Sums of the weight gradient by several tasks.
    ([33, 16, 16, 16], 16, 1),
    ([23, 64, 20, 20], 64, 1),
    ([33, 16, 7, 8], 48, 2),
    ([3, 48, 13, 16], 32, 2),
    ([1, 32, 21, 55], 16, 2),
    ([33, 16, 32, 32], 16, 2),
    ([9, 144, 8, 7], 160, 2),
];
/// More tiles than a large block has.
const LARGE: [Size; 4] =
    [([5, 1040, 16, 16], 16, 1), ([5, 16, 16, 16], 1040, 1), ([17, 1040, 16, 16], 16, 2), ([27, 32, 16, 16], 528, 2)];

fn plan((x, outputs, stride): Size, parallel_for: ParallelFor) -> Winograd {
    Winograd::new(x, outputs, stride, parallel_for).expect("the size is one of those")
}

/// Input and gradient of the output, and kernels; channels lie innermost.
fn values<T: Stored>(([batch, inputs, height, width], outputs, stride): Size) -> ([Vec<T>; 2], Vec<f32>) {
    let [pixels, output] = [1, stride].map(|stride| batch * height.div_ceil(stride) * width.div_ceil(stride));
    ([noise(pixels * inputs, 1), noise(output * outputs, 3)].map(rounded), noise(inputs * outputs * 9, 2))
}

/// The bits of output, gradient of the input and gradient of the kernels.
fn products<T: Stored>(plan: &Winograd, ([x, gradient], kernels): &([Vec<T>; 2], Vec<f32>)) -> [Vec<u32>; 3] {
    let [mut output, mut dx] = [gradient, x].map(|like| vec![T::of(f32::NAN); like.len()]);
    let mut dkernels = vec![f32::NAN; kernels.len()];
    plan.forward(x, kernels, &mut output);
    plan.input_gradient(gradient, kernels, &mut dx);
    plan.weight_gradient(x, gradient, &mut dkernels);
    let bits = |values: Vec<T>| values.into_iter().map(T::bits).collect::<Vec<_>>();
    [bits(output), bits(dx), dkernels.into_iter().map(f32::to_bits).collect()]
}

#[test]
fn every_instruction_set_and_any_number_of_threads_give_the_same_bits() {
    same_bits::<f32>(&SIZES);
    same_bits::<bf16>(&SIZES);
    same_bits::<f16>(&SIZES);
    // Large blocks do not depend on the type.
    same_bits::<f32>(&LARGE);
}

fn same_bits<T: Stored>(sizes: &[Size]) {
    for size in sizes.iter().copied() {
        let values = values::<T>(size);
        let mut first = None;
        for (set, each) in Set::available().into_iter().flat_map(|set| [(set, alone as _), (set, backwards as _)]) {
            let found = products(&plan(size, each).on(set), &values);
            assert!(found == *first.get_or_insert_with(|| found.clone()), "{set:?}: other bits for {size:?}");
        }
    }
}

#[test]
fn an_epilogue_has_the_bits_of_the_same_arithmetic_behind_the_convolution() {
    epilogues::<f32>(&SIZES);
    epilogues::<bf16>(&SIZES);
    epilogues::<f16>(&SIZES);
    epilogues::<f32>(&LARGE[..2]);
}

fn epilogues<T: Stored>(sizes: &[Size]) {
    for size in sizes.iter().copied() {
        let (([images, shortcut], kernels), outputs) = (values::<T>(size), size.1);
        let [mean, scale, bias] = [4, 5, 6].map(|seed| noise(outputs, seed));
        for (set, each) in Set::available().into_iter().flat_map(|set| [(set, alone as _), (set, backwards as _)]) {
            let plan = plan(size, each).on(set);
            let mut plain = vec![T::of(f32::NAN); shortcut.len()];
            plan.forward(&images, &kernels, &mut plain);
            for (shortcut, relu) in [(None, false), (None, true), (Some(shortcut.as_slice()), true)] {
                let epilogue = Epilogue { factors: [&mean, &scale, &bias], shortcut, relu };
                let mut found = vec![T::of(f32::NAN); plain.len()];
                plan.forward_with(&images, &kernels, Some(epilogue), &mut found);
                for (i, (plain, found)) in plain.iter().zip(found).enumerate() {
                    let channel = i % outputs;
                    let value = (plain.widened() - mean[channel]) * scale[channel] + bias[channel];
                    let value = shortcut.map_or(value, |shortcut| value + shortcut[i].widened());
                    let expected = T::of(if relu && value < 0.0 { 0.0 } else { value });
                    assert_eq!(found.bits(), expected.bits(), "{set:?}, {size:?}, value {i}");
                }
            }
        }
    }
}

#[test]
fn what_becomes_of_an_image_does_not_depend_on_those_beside_it() {
    // The last two have more sums than are kept in a cache.
    for size in
        [([3, 32, 9, 6], 48, 1), ([3, 32, 13, 8], 48, 2), ([15, 32, 16, 16], 528, 1), ([27, 32, 16, 16], 528, 2)]
    {
        let ([batch, inputs, height, width], outputs, stride) = size;
        let ([x, gradient], kernels) = values::<f32>(size);
        let [pixels, output] = [&x, &gradient].map(|values| values.len() / batch);
        let run = |x: &[f32], gradient: &[f32]| {
            let plan = plan(([x.len() / pixels, inputs, height, width], outputs, stride), alone);
            let [mut y, mut dx] = [gradient, x].map(|like| vec![f32::NAN; like.len()]);
            plan.forward(x, &kernels, &mut y);
            plan.input_gradient(gradient, &kernels, &mut dx);
            [y, dx]
        };
        let [y, dx] = run(&x, &gradient);
        for image in 0..batch {
            let [from, to] = [pixels, output].map(|length| image * length..(image + 1) * length);
            let alone = run(&x[from.clone()], &gradient[to.clone()]);
            assert!(alone == [&y[to], &dx[from]], "image {image} of {size:?}");
        }
    }
}

#[test]
fn sizes_that_gain_nothing_are_left_to_the_definition() {
    let is_taken = |x, outputs, stride| Winograd::new(x, outputs, stride, alone).is_some();
    for size in [3, 4, 7] {
        assert!(is_taken([1, 16, size, size], 16, 1), "{size}");
    }
    // Outputs of 4, 7, 14 and 16 pixels on a side.
    for size in [7, 8, 13, 14, 28, 32] {
        assert!(is_taken([1, 16, size, size], 16, 2), "{size}");
    }
    for (x, outputs, stride) in [
        ([8, 64, 1, 1], 64, 1),
        ([8, 64, 2, 2], 64, 1),
        ([8, 64, 5, 5], 64, 1),
        ([8, 24, 8, 8], 64, 1),
        ([8, 64, 8, 8], 8, 1),
        ([8, 3, 32, 32], 64, 1),
        ([0, 64, 8, 8], 64, 1),
        ([8, 64, 4, 4], 64, 2),
        ([8, 64, 6, 6], 64, 2),
        ([8, 64, 10, 10], 64, 2),
        ([8, 64, 26, 26], 64, 2),
        ([8, 24, 8, 8], 64, 2),
        ([0, 64, 8, 8], 64, 2),
        ([8, 64, 9, 9], 64, 3),
    ] {
        assert!(!is_taken(x, outputs, stride), "{x:?} to {outputs}, stride {stride}");
    }
}
