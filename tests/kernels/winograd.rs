//! F(4x4, 3x3): the same bits on every instruction set and any number of threads, and how far they are from the truth.

use kiln_kernels::{Epilogue, Set, Winograd};

use half::{bf16, f16};

use super::{Stored, alone, backwards, noise, rounded};

/// `[batch, inputs, height, width]` and outputs: sizes that fill no block, and those that take each of the plans.
const SIZES: [([usize; 4], usize); 12] = [
    ([1, 16, 3, 3], 16),
    ([33, 16, 3, 4], 48),
    ([2, 32, 7, 7], 16),
    ([3, 48, 9, 13], 32),
    ([1, 16, 57, 57], 64),
    ([2, 16, 57, 3], 32),
    ([5, 64, 16, 12], 16),
    ([9, 144, 4, 4], 160),
    // Sums of the weight gradient by several tasks.
    ([33, 16, 16, 16], 16),
    ([23, 64, 20, 20], 64),
    // More tiles than a large block has.
    ([5, 1040, 16, 16], 16),
    ([5, 16, 16, 16], 1040),
];

/// Input and gradient of the output, and kernels; channels lie innermost.
fn values<T: Stored>([batch, inputs, height, width]: [usize; 4], outputs: usize) -> ([Vec<T>; 2], Vec<f32>) {
    let pixels = batch * height * width;
    ([noise(pixels * inputs, 1), noise(pixels * outputs, 3)].map(rounded), noise(inputs * outputs * 9, 2))
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
    // Large blocks do not depend on the type.
    same_bits::<bf16>(&SIZES[..10]);
    same_bits::<f16>(&SIZES[..10]);
}

fn same_bits<T: Stored>(sizes: &[([usize; 4], usize)]) {
    for (x, outputs) in sizes.iter().copied() {
        let values = values::<T>(x, outputs);
        let plan = Winograd::new(x, outputs, alone).expect("the size is one of those");
        let first = products(&plan.on(Set::Portable), &values);
        for set in Set::available() {
            for each in [alone, backwards] {
                let plan = Winograd::new(x, outputs, each).expect("the size is one of those").on(set);
                assert!(products(&plan, &values) == first, "{set:?}: other bits for {x:?} to {outputs}");
            }
        }
    }
}

#[test]
fn an_epilogue_has_the_bits_of_the_same_arithmetic_behind_the_convolution() {
    epilogues::<f32>(&SIZES);
    epilogues::<bf16>(&SIZES[..10]);
    epilogues::<f16>(&SIZES[..10]);
}

fn epilogues<T: Stored>(sizes: &[([usize; 4], usize)]) {
    for (x, outputs) in sizes.iter().copied() {
        let ([images, shortcut], kernels) = values::<T>(x, outputs);
        let [mean, scale, bias] = [4, 5, 6].map(|seed| noise(outputs, seed));
        for (set, each) in Set::available().into_iter().flat_map(|set| [(set, alone as _), (set, backwards as _)]) {
            let plan = Winograd::new(x, outputs, each).expect("the size is one of those").on(set);
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
                    assert_eq!(found.bits(), expected.bits(), "{set:?}, {x:?} to {outputs}, value {i}");
                }
            }
        }
    }
}

#[test]
fn what_becomes_of_an_image_does_not_depend_on_those_beside_it() {
    let (size, outputs) = ([3, 32, 9, 6], 48);
    let ([x, _], kernels) = values::<f32>(size, outputs);
    let forward = |x: &[f32], images: usize| {
        let mut output = vec![f32::NAN; images * 9 * 6 * outputs];
        let plan = Winograd::new([images, 32, 9, 6], outputs, alone).expect("the size is one of those");
        plan.forward(x, &kernels, &mut output);
        output
    };
    let together = forward(&x, 3);
    for (alone, among) in x.chunks(x.len() / 3).zip(together.chunks(together.len() / 3)) {
        assert_eq!(forward(alone, 1), among);
    }
}

#[test]
fn sizes_that_gain_nothing_are_left_to_the_definition() {
    let is_taken = |x, outputs| Winograd::new(x, outputs, alone).is_some();
    assert!(is_taken([1, 16, 3, 3], 16) && is_taken([1, 512, 4, 4], 512));
    for (x, outputs) in [
        ([8, 64, 1, 1], 64),
        ([8, 64, 2, 2], 64),
        ([8, 64, 5, 5], 64),
        ([8, 24, 8, 8], 64),
        ([8, 64, 8, 8], 8),
        ([8, 3, 32, 32], 64),
        ([0, 64, 8, 8], 64),
    ] {
        assert!(!is_taken(x, outputs), "{x:?} to {outputs}");
    }
}
