//! Convolution: output, weight gradient and input gradient.

use burn::backend::Autodiff;
use burn::tensor::{DType, Tensor};
use kiln_engine::parallel::HostBackend;
use kiln_ops::{
    Algorithm, ConvOps, Epilogue, Precision, PreparedKernel, Sliding, arranged, conv2d, conv2d_normalized, normalize,
};
use proptest::prelude::*;

use super::{assert_close, noise, rounded, tensor, to_vec};
use crate::backends::computes_in;

/// `[batch, inputs, height, width]`, outputs, kernel, stride, padding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) x: [usize; 4],
    outputs: usize,
    kernel: [usize; 2],
    pub(super) sliding: Sliding,
}

/// As the primitive, in order: output, weight gradient, input gradient.
type Products<T> = [Vec<T>; 3];

impl Case {
    pub(super) fn new(x: [usize; 4], outputs: usize, kernel: usize, stride: usize, padding: usize) -> Self {
        Self {
            x,
            outputs,
            kernel: [kernel; 2],
            sliding: Sliding { stride, padding, groups: 1, algorithm: Algorithm::Auto },
        }
    }

    fn grouped(self, groups: usize) -> Self {
        Self { sliding: Sliding { groups, ..self.sliding }, ..self }
    }

    pub(super) fn weight_shape(&self) -> [usize; 4] {
        [self.outputs, self.x[1] / self.sliding.groups, self.kernel[0], self.kernel[1]]
    }

    pub(super) fn output_shape(&self) -> [usize; 4] {
        let Sliding { stride, padding, .. } = self.sliding;
        let out = |axis: usize| (self.x[2 + axis] + 2 * padding - self.kernel[axis]) / stride + 1;
        [self.x[0], self.outputs, out(0), out(1)]
    }

    /// Input, weight, gradient of the output.
    fn values(&self) -> [Vec<f32>; 3] {
        let count = |shape: [usize; 4]| shape.iter().product();
        [noise(count(self.x), 1), noise(count(self.weight_shape()), 2), noise(count(self.output_shape()), 3)]
    }

    fn naive(&self) -> Products<f64> {
        self.naive_of(&self.values())
    }

    /// The definition, one product at a time.
    fn naive_of(&self, [x, weight, gradient]: &[Vec<f32>; 3]) -> Products<f64> {
        let (weight_shape, out) = (self.weight_shape(), self.output_shape());
        let index = |shape: [usize; 4], [a, b, c, d]: [usize; 4]| ((a * shape[1] + b) * shape[2] + c) * shape[3] + d;
        let mut products = [vec![0.0; gradient.len()], vec![0.0; weight.len()], vec![0.0; x.len()]];
        let Sliding { stride, padding, groups, .. } = self.sliding;
        for [n, o, oy, ox] in places(out) {
            let first = o / (self.outputs / groups) * weight_shape[1];
            for [i, ky, kx, _] in places([weight_shape[1], self.kernel[0], self.kernel[1], 1]) {
                let (y, x_) = (oy * stride + ky, ox * stride + kx);
                if y < padding || x_ < padding || y - padding >= self.x[2] || x_ - padding >= self.x[3] {
                    continue;
                }
                let at_x = index(self.x, [n, first + i, y - padding, x_ - padding]);
                let at_weight = index(weight_shape, [o, i, ky, kx]);
                let at_out = index(out, [n, o, oy, ox]);
                let (x, weight, gradient) =
                    (f64::from(x[at_x]), f64::from(weight[at_weight]), f64::from(gradient[at_out]));
                products[0][at_out] += x * weight;
                products[1][at_weight] += x * gradient;
                products[2][at_x] += weight * gradient;
            }
        }
        products
    }

    fn primitive<B: ConvOps>(&self) -> Products<f32> {
        self.primitive_of::<B>(|x| x)
    }

    /// With the input in the memory layout that `arrange` gives it.
    fn primitive_of<B: ConvOps>(&self, arrange: fn(Tensor<Autodiff<B>, 4>) -> Tensor<Autodiff<B>, 4>) -> Products<f32> {
        let [x, weight, gradient] = self.values();
        let x = arrange(tensor::<Autodiff<B>, 4>(&x, self.x)).require_grad();
        let weight = tensor::<Autodiff<B>, 4>(&weight, self.weight_shape()).require_grad();
        let output = conv2d(x.clone(), weight.clone(), self.sliding, None);
        assert_eq!(output.dims(), self.output_shape());
        let gradients = (output.clone() * tensor(&gradient, self.output_shape())).sum().backward();
        let [x, weight] = [x, weight].map(|leaf| to_vec(leaf.grad(&gradients).expect("both are asked for")));
        [to_vec(output), weight, x]
    }

    fn check<B: ConvOps>(&self) {
        self.compare(&self.primitive::<B>());
        self.compare(&self.primitive_of::<B>(|x| arranged(x, true)));
    }

    fn compare(&self, found: &Products<f32>) {
        let expected = self.naive();
        for (i, what) in ["output", "weight gradient", "input gradient"].into_iter().enumerate() {
            assert_close(&format!("{what} of {self:?}"), &found[i], &expected[i], 3e-6);
        }
    }
}

fn places([a, b, c, d]: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    (0..a * b * c * d).map(move |i| [i / (b * c * d), i / (c * d) % b, i / d % c, i % d])
}

/// The layers of both ResNet-18 stems at small batch and width, and what lies between their sizes.
fn layers<B: ConvOps>() {
    let cases = [
        Case::new([2, 3, 32, 32], 8, 3, 1, 1),
        Case::new([3, 3, 32, 32], 20, 7, 2, 3),
        Case::new([2, 64, 8, 8], 64, 3, 1, 1),
        Case::new([2, 24, 16, 16], 40, 3, 2, 1),
        Case::new([2, 24, 16, 16], 40, 1, 2, 0),
        Case::new([1, 4, 32, 32], 8, 1, 2, 0),
        Case::new([1, 6, 7, 7], 12, 1, 2, 0),
        Case::new([9, 70, 4, 4], 33, 3, 1, 1),
        Case::new([7, 33, 1, 1], 17, 3, 1, 1),
        Case::new([5, 40, 2, 2], 48, 3, 2, 1),
        Case::new([7, 32, 2, 2], 48, 3, 1, 1),
        Case::new([33, 16, 4, 4], 32, 3, 2, 1),
        Case::new([2, 48, 2, 2], 16, 2, 2, 0),
        Case::new([1, 1, 1, 1], 1, 1, 1, 0),
        Case::new([1, 5, 9, 13], 7, 3, 3, 2),
        Case::new([2, 4, 5, 5], 6, 1, 3, 2),
        Case::new([17, 2, 7, 3], 100, 2, 1, 0),
        Case { kernel: [1, 5], ..Case::new([2, 6, 7, 11], 9, 1, 2, 1) },
    ];
    cases.iter().for_each(Case::check::<B>);
}

/// What tiles of 4x4 outputs are for, at sizes that fit no tile and no block.
fn winograd<B: ConvOps>() {
    for (x, outputs, stride) in [
        ([1, 16, 3, 3], 16, 1),
        ([33, 16, 3, 4], 48, 1),
        ([2, 32, 7, 7], 16, 1),
        ([3, 48, 9, 13], 32, 1),
        ([1, 16, 57, 57], 16, 1),
        ([5, 64, 16, 12], 16, 1),
        ([33, 16, 16, 16], 16, 1),
        ([9, 144, 4, 4], 128, 1),
        ([2, 32, 7, 8], 16, 2),
        ([3, 48, 13, 16], 32, 2),
        ([1, 32, 21, 55], 16, 2),
        ([9, 16, 32, 32], 16, 2),
        ([9, 144, 8, 7], 128, 2),
    ] {
        let case = Case::new(x, outputs, 3, stride, 1);
        case.check::<B>();
        let sliding = Sliding { algorithm: Algorithm::Direct, ..case.sliding };
        let direct = Case { sliding, ..case };
        direct.check::<B>();
    }
}

/// Where a backend applies an epilogue within the convolution, and where it does not, in all types that it computes in.
fn normalized<B: ConvOps + HostBackend>() {
    let winograd = [
        Case::new([3, 48, 9, 13], 32, 3, 1, 1),
        Case::new([9, 144, 4, 4], 128, 3, 1, 1),
        Case::new([3, 48, 13, 16], 32, 3, 2, 1),
    ];
    let direct = [Case::new([2, 24, 16, 16], 40, 3, 2, 1), Case::new([7, 32, 2, 2], 48, 3, 1, 1)];
    let trimmed = Case::new([7, 33, 1, 1], 17, 3, 1, 1);
    let grouped = [Case::new([3, 32, 9, 9], 32, 3, 1, 1).grouped(2), Case::new([7, 32, 1, 1], 64, 3, 1, 1).grouped(8)];
    let cases = winograd.into_iter().chain(direct).chain([trimmed]).chain(grouped);
    let types = [Precision::F32, Precision::Bf16, Precision::F16];
    for (case, precision) in cases.flat_map(|case| types.map(|precision| (case, precision))) {
        if !computes_in::<B>(precision) {
            continue;
        }
        let [x, weight, shortcut] = case.values();
        let image = |values: &[f32], shape| tensor::<B, 4>(values, shape).cast(precision.dtype());
        let (x, weight) = (arranged(image(&x, case.x), true), tensor::<B, 4>(&weight, case.weight_shape()));
        let [mean, scale, bias] = [4, 5, 6].map(|seed| tensor::<B, 1>(&noise(case.outputs, seed), [case.outputs]));
        let factors = || [mean.clone(), scale.clone(), bias.clone()];
        let shortcut = image(&shortcut, case.output_shape());
        for epilogue in [Epilogue::Identity, Epilogue::Relu, Epilogue::AddRelu(shortcut)] {
            let kernel = PreparedKernel::new(weight.clone(), &x, case.sliding);
            let found = conv2d_normalized(x.clone(), kernel, factors(), epilogue.clone());
            let plain = conv2d(x.clone(), weight.clone(), case.sliding, None);
            let expected = normalize(plain, factors(), epilogue);
            let [found, expected] = [found, expected].map(|values| to_vec(values.cast(DType::F32)));
            assert_eq!(found, expected, "{case:?} in {precision:?}");
        }
    }
}

/// Groups of one channel and of sixteen, which have kernels of their own; on one pixel, where kernels are trimmed.
fn grouped<B: ConvOps>() {
    let cases = [
        Case::new([2, 8, 9, 7], 12, 3, 1, 1).grouped(4),
        Case::new([3, 32, 8, 8], 32, 3, 2, 1).grouped(8),
        Case::new([2, 64, 6, 6], 64, 3, 1, 1).grouped(4),
        Case::new([2, 6, 5, 5], 6, 3, 1, 1).grouped(6),
        Case::new([2, 12, 5, 4], 6, 1, 2, 0).grouped(3),
        Case::new([5, 32, 1, 1], 64, 3, 1, 1).grouped(8),
        Case::new([5, 64, 2, 2], 64, 3, 2, 1).grouped(32),
    ];
    cases.iter().for_each(Case::check::<B>);
}

on_every_backend! {
    grouped_convolutions_and_their_gradients_are_those_of_the_definition => || grouped::<TestBackend>();
    a_convolution_with_an_epilogue_is_one_after_the_other => || normalized::<TestBackend>();
    convolutions_by_fewer_multiplications_are_those_of_the_definition => || winograd::<TestBackend>();
    convolutions_and_their_gradients_are_those_of_the_definition => || layers::<TestBackend>();
    a_convolution_of_data_has_no_input_gradient => || data_needs_no_gradient::<TestBackend>();
    convolutions_of_halves_are_those_of_the_definition_rounded_once => || halves::<TestBackend>();
}

/// By Winograd's algorithm, by the definition, and where the output is one pixel, in the half types that the backend
/// computes in: sums in f32, rounded once.
fn halves<B: ConvOps + HostBackend>() {
    let cases = [
        Case::new([3, 48, 9, 13], 32, 3, 1, 1),
        Case::new([9, 144, 4, 4], 160, 3, 1, 1),
        Case::new([3, 48, 13, 16], 32, 3, 2, 1),
        Case::new([2, 3, 32, 32], 8, 3, 1, 1),
        Case::new([3, 3, 32, 32], 20, 7, 2, 3),
        Case::new([2, 24, 16, 16], 40, 3, 2, 1),
        Case::new([4, 64, 6, 6], 128, 1, 2, 0),
        Case::new([7, 32, 2, 2], 48, 3, 1, 1),
        Case::new([3, 8, 1, 1], 6, 3, 1, 1),
        Case::new([2, 5, 2, 2], 7, 3, 2, 1),
        Case::new([3, 32, 8, 8], 32, 3, 2, 1).grouped(8),
    ];
    for (precision, unit) in [(Precision::Bf16, 8), (Precision::F16, 11)].map(|(of, bits)| (of, 0.5_f64.powi(bits))) {
        let layouts = [false, true].into_iter().filter(|_| computes_in::<B>(precision));
        for (case, innermost) in layouts.flat_map(|innermost| cases.map(|case| (case, innermost))) {
            let values = case.values().map(|values| rounded(values, precision));
            let x = tensor::<Autodiff<B>, 4>(&values[0], case.x).cast(precision.dtype());
            let x = arranged(x, innermost).require_grad();
            let weight = tensor::<Autodiff<B>, 4>(&values[1], case.weight_shape()).require_grad();
            let output = conv2d(x.clone(), weight.clone(), case.sliding, None);
            assert_eq!(output.dtype(), precision.dtype());
            let gradient = tensor::<Autodiff<B>, 4>(&values[2], case.output_shape()).cast(precision.dtype());
            let gradients = (output.clone() * gradient).sum().backward();
            let [x, weight] = [x, weight].map(|leaf| leaf.grad(&gradients).expect("both are asked for"));
            assert_eq!([x.dtype(), weight.dtype()], [precision.dtype(), DType::F32]);
            let sum = if B::is_processor() { 1e-5 } else { 1e-3 };
            let found = [to_vec(output.cast(DType::F32)), to_vec(weight), to_vec(x.cast(DType::F32))];
            for (found, expected) in found.iter().zip(case.naive_of(&values)) {
                let sum = sum * expected.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
                for (found, expected) in found.iter().zip(expected) {
                    let off = (f64::from(*found) - expected).abs();
                    assert!(off <= sum + unit * expected.abs(), "{case:?} in {precision:?}: {found}, not {expected}");
                }
            }
        }
    }
}

fn data_needs_no_gradient<B: ConvOps>() {
    let case = Case::new([2, 3, 6, 6], 4, 3, 1, 1);
    let [x, weight, _] = case.values();
    let x = tensor::<Autodiff<B>, 4>(&x, case.x);
    let weight = tensor::<Autodiff<B>, 4>(&weight, case.weight_shape()).require_grad();
    let gradients = conv2d(x.clone(), weight.clone(), case.sliding, None).sum().backward();
    assert!(weight.grad(&gradients).is_some() && x.grad(&gradients).is_none());
}

/// Not the layers of any network: sizes that are multiples of nothing.
fn any_case() -> impl Strategy<Value = Case> {
    let sizes = (1..12_usize, 1..30_usize, 1..14_usize, 1..14_usize, 1..50_usize);
    (sizes, 1..4_usize, prop_oneof![Just(1_usize), Just(2), Just(3), Just(7)], 0..4_usize)
        .prop_filter("the kernel fits", |((_, _, h, w, _), _, kernel, padding)| h.min(w) + 2 * padding >= *kernel)
        .prop_map(|((n, i, h, w, o), stride, kernel, padding)| Case::new([n, i, h, w], o, kernel, stride, padding))
}

#[cfg(feature = "flex")]
mod flex_only {
    use super::*;
    use burn::backend::Flex;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn convolutions_of_any_size_are_those_of_the_definition(case in any_case()) {
            case.check::<Flex>();
        }
    }

    #[test]
    fn convolutions_are_the_same_bits_on_any_number_of_threads() {
        for case in [Case::new([6, 40, 9, 9], 70, 3, 1, 1), Case::new([9, 20, 12, 12], 24, 3, 2, 1)] {
            crate::assert_independent_of_threads(|| case.primitive::<Flex>().concat());
        }
    }

    #[test]
    fn a_convolution_reads_views_that_are_not_contiguous() {
        let case = Case::new([2, 5, 6, 4], 3, 3, 1, 1);
        let [x, weight, _] = case.values();
        let x = tensor::<Flex, 4>(&x, case.x);
        let turned = x.swap_dims(2, 3);
        let weight = tensor::<Flex, 4>(&weight, case.weight_shape());
        let found = conv2d(turned, weight.swap_dims(2, 3), case.sliding, None).swap_dims(2, 3);
        assert_close("output", &to_vec(found), &case.naive()[0], 3e-6);
    }
}
