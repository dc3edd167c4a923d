//! Convolutions of bf16 on a matrix unit, by its emulation: against the definition, and the same bits with any number
//! of threads and beside any images.

use half::{bf16, f16};
use kiln_kernels::{Convolution, Epilogue, Geometry, MatrixUnit, ParallelFor};

use super::convolution::{definition, values, written};
use super::skipped::skip;
use super::{Stored, alone, assert_close, assert_stored, backwards, noise};

/// `[batch, inputs, height, width]`, outputs, kernel, stride, padding: sizes that fill no block, rows of the copy that
/// are longer and shorter than the image's, and batches of one group and of many.
const SIZES: [Size; 17] = [
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
    ([3, 288, 53, 52], 32, 1, 1, 0),
];

type Size = ([usize; 4], usize, usize, usize, usize);

fn plan(size: Size, unit: Option<MatrixUnit>, parallel_for: ParallelFor) -> Convolution {
    let ([batch, inputs, height, width], outputs, kernel, stride, padding) = size;
    let (size, kernel) = ([height, width], [kernel; 2]);
    Convolution::new(Geometry { batch, inputs, outputs, size, kernel, stride, padding, parallel_for }, false).on(unit)
}

/// Output, gradient of the input and gradient of the kernels.
type Products<T> = (Vec<T>, Vec<T>, Vec<f32>);

fn products<T: Stored>(plan: &Convolution, ([x, gradient], weight): &([Vec<T>; 2], Vec<f32>)) -> Products<T> {
    let output = written(gradient.len(), |output| plan.forward(x, weight, None, output));
    let input = written(x.len(), |input| plan.input_gradient(weight, gradient, input));
    (output, input, written(weight.len(), |output| plan.weight_gradient(x, gradient, output)))
}

#[test]
fn products_are_those_of_the_definition_with_kernels_in_bf16() {
    for size in SIZES {
        let emulated = |threads: ParallelFor| plan(size, Some(MatrixUnit::Emulated), threads);
        let g = emulated(alone).geometry;
        let values = values::<bf16>(&g);
        let ([images, gradient], weight) = &values;
        let near: Vec<f32> = weight.iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
        let [y, dw, dx] = definition(&g, images, gradient, &near);
        let found = products(&emulated(alone), &values);
        assert_stored(&found.0, &y, &format!("output of {size:?}"));
        assert_stored(&found.1, &dx, &format!("input gradient of {size:?}"));
        assert_close(&found.2, &dw, &format!("weight gradient of {size:?}"));
        assert!(products(&emulated(backwards), &values) == found, "other bits on other threads for {size:?}");
    }
}

#[test]
fn the_unit_of_this_machine_has_the_bits_of_its_emulation() {
    let Some(unit) = MatrixUnit::of_machine() else { return skip("this machine has no matrix unit (AMX)") };
    for size in SIZES {
        let [found, expected] = [unit, MatrixUnit::Emulated].map(|unit| {
            let plan = plan(size, Some(unit), backwards);
            products(&plan, &values::<bf16>(&plan.geometry))
        });
        assert!(found == expected, "{size:?}");
    }
}

/// One pixel per image: a weight gradient's sum runs over the images, whose pairs are two chains, and their sum is
/// added to that of the images before.
#[test]
fn an_emulated_product_adds_in_the_order_of_the_instruction_and_takes_subnormal_numbers_for_zero() {
    let sum = |factors: &[[f32; 2]]| {
        let plan = plan(([factors.len(), 32, 1, 1], 32, 1, 1, 0), Some(MatrixUnit::Emulated), alone);
        let [x, gradient] = [0, 1].map(|side| -> Vec<_> {
            let value = |i: usize| if i.is_multiple_of(32) { factors[i / 32][side] } else { 0.0 };
            (0..32 * factors.len()).map(value).map(bf16::from_f32).collect()
        });
        written(32 * 32, |weight| plan.weight_gradient(&x, &gradient, weight))[0]
    };
    // After 2^24 each one is lost, unless the ones have a chain of their own.
    let mut factors = [[0.0, 1.0], [1.0, 1.0]].repeat(16);
    factors[0] = [4096.0; 2];
    assert_eq!(sum(&factors), 16_777_232.0);
    factors.push([-4096.0, 4096.0]);
    assert_eq!(sum(&factors), 16.0);
    let [least, large] = [bf16::MIN_POSITIVE.to_f32(), bf16::MAX.to_f32()];
    assert_eq!(sum(&[[least, 0.5]]), 0.0);
    assert_eq!(sum(&[[least / 2.0, large]]), 0.0);
    // Their sum is normal, but each of both products alone is not.
    assert_eq!(sum(&[[least, 0.75], [least, 0.75]]), 0.0);
    assert_eq!(sum(&[[least, 1.0], [least, 0.5]]), least);
}

#[test]
fn what_becomes_of_an_image_does_not_depend_on_those_beside_it() {
    for (x, outputs, kernel, stride, padding) in [SIZES[0], SIZES[4], SIZES[7], SIZES[9]] {
        let size = |batch: usize| ([batch, x[1], x[2], x[3]], outputs, kernel, stride, padding);
        let emulated = |batch: usize| plan(size(batch), Some(MatrixUnit::Emulated), alone);
        let ([images, gradient], weight) = values::<bf16>(&emulated(x[0]).geometry);
        let both = products(&emulated(x[0]), &([images.clone(), gradient.clone()], weight.clone()));
        for image in 0..x[0] {
            let part = |of: &[bf16]| of[image * of.len() / x[0]..(image + 1) * of.len() / x[0]].to_vec();
            let found = products(&emulated(1), &([part(&images), part(&gradient)], weight.clone()));
            assert!(found.0 == part(&both.0) && found.1 == part(&both.1), "image {image} of {:?}", size(x[0]));
        }
    }
}

#[test]
fn an_epilogue_has_the_bits_of_the_same_arithmetic_behind_the_convolution() {
    for size in [SIZES[0], SIZES[4], SIZES[7]] {
        let plan = plan(size, Some(MatrixUnit::Emulated), backwards);
        let (([images, shortcut], weight), outputs) = (values::<bf16>(&plan.geometry), size.1);
        let [mean, scale, bias] = [4, 5, 6].map(|seed| noise(outputs, seed));
        let plain = written::<bf16>(shortcut.len(), |output| plan.forward(&images, &weight, None, output));
        for (shortcut, relu) in [(None, false), (Some(shortcut.as_slice()), true)] {
            let epilogue = Epilogue { factors: [&mean, &scale, &bias], shortcut, relu };
            let found = written(plain.len(), |output| plan.forward(&images, &weight, Some(epilogue), output));
            let expected = written(plain.len(), |output| epilogue.rows(&plain, 0, output));
            assert!(found == expected, "{size:?}");
        }
    }
}

#[test]
fn only_whole_tiles_of_bf16_are_taken() {
    fn is_taken<T: Stored>(size: Size) -> bool {
        let [without, with] = [None, Some(MatrixUnit::Emulated)].map(|unit| plan(size, unit, alone));
        let values = values::<T>(&with.geometry);
        products(&without, &values) != products(&with, &values)
    }
    assert!(is_taken::<bf16>(([2, 32, 4, 4], 64, 3, 1, 1)));
    assert!(!is_taken::<f32>(([2, 32, 4, 4], 64, 3, 1, 1)) && !is_taken::<f16>(([2, 32, 4, 4], 64, 3, 1, 1)));
    for (inputs, outputs) in [(3, 64), (16, 32), (32, 48), (33, 32)] {
        assert!(!is_taken::<bf16>(([2, inputs, 4, 4], outputs, 3, 1, 1)), "{inputs} to {outputs}");
    }
}

#[test]
fn one_variable_restricts_the_unit_as_it_does_that_of_one_dnn() {
    for most in ["", "all", "DEFAULT", "AVX512_CORE_AMX", "avx512_core_amx_fp16", "AVX10_1_512_AMX"] {
        assert!(MatrixUnit::is_within(most), "{most}");
    }
    for most in ["SSE41", "AVX2_VNNI_2", "AVX512_CORE", "avx512_core_bf16", "AVX512_CORE_FP16", "AVX10_1_512"] {
        assert!(!MatrixUnit::is_within(most), "{most}");
    }
}
