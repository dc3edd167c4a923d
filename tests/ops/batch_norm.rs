//! Batch-norm: output, statistics and gradients, alone and with another replica.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use kiln_engine::parallel::HostBackend;
use kiln_ops::statistics::{Combine, Direction, Payload, StatisticsGroup, Synchronized};
use kiln_ops::{
    BatchNormOps, ConvOps, Epilogue, HostOps, Precision, Shared, arranged, batch_norm, inference_factors, normalize,
};

use super::{assert_close, noise, rounded, tensor, to_vec};
use crate::backends::computes_in;

const EPSILON: f64 = 1e-5;

/// Precisions of half the bytes, with the error of about two roundings.
const HALVES: [(Precision, f64); 2] = [(Precision::Bf16, 1e-2), (Precision::F16, 1.5e-3)];

/// A batch, and the gradient of its output.
pub(super) struct Case {
    shape: [usize; 4],
    pub(super) x: Vec<f32>,
    pub(super) weight: Vec<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) gradient: Vec<f32>,
}

/// What the definition gives, and what the primitive must.
#[derive(Debug, Default)]
pub(super) struct Results<T> {
    pub(super) output: Vec<T>,
    pub(super) mean: Vec<T>,
    pub(super) variance: Vec<T>,
    pub(super) x_gradient: Vec<T>,
    pub(super) weight_gradient: Vec<T>,
    pub(super) bias_gradient: Vec<T>,
}

impl Case {
    /// Values around `offset` with a deviation of about `spread`.
    pub(super) fn new(shape: [usize; 4], offset: f32, spread: f32) -> Self {
        let count = shape.iter().product();
        let x = noise(count, 5).into_iter().map(|value| offset + spread * value).collect();
        let [weight, bias] = [6, 7].map(|seed| noise(shape[1], seed));
        Self { shape, x, weight, bias, gradient: noise(count, 8) }
    }

    fn area(&self) -> usize {
        self.shape[2] * self.shape[3]
    }

    /// Positions of a channel's values.
    fn channel(&self, channel: usize) -> impl Iterator<Item = usize> + Clone {
        let (area, channels) = (self.area(), self.shape[1]);
        (0..self.shape[0] * area).map(move |i| (i / area * channels + channel) * area + i % area)
    }

    pub(super) fn naive(&self) -> Results<f64> {
        let mut results =
            Results { output: vec![0.0; self.x.len()], x_gradient: vec![0.0; self.x.len()], ..Default::default() };
        for channel in 0..self.shape[1] {
            let at = self.channel(channel);
            let count = at.clone().count() as f64;
            let mean = at.clone().map(|i| f64::from(self.x[i])).sum::<f64>() / count;
            let m2: f64 = at.clone().map(|i| (f64::from(self.x[i]) - mean).powi(2)).sum();
            let inv_std = 1.0 / (m2 / count + EPSILON).sqrt();
            let normal = |i: usize| (f64::from(self.x[i]) - mean) * inv_std;
            let gradient = |i: usize| f64::from(self.gradient[i]);
            let sum: f64 = at.clone().map(gradient).sum();
            let weighted: f64 = at.clone().map(|i| gradient(i) * normal(i)).sum();
            let (weight, bias) = (f64::from(self.weight[channel]), f64::from(self.bias[channel]));
            for i in at {
                results.output[i] = normal(i) * weight + bias;
                results.x_gradient[i] = weight * inv_std * (gradient(i) - sum / count - normal(i) * weighted / count);
            }
            results.mean.push(mean);
            results.variance.push(m2 / (count - 1.0).max(1.0));
            results.weight_gradient.push(weighted);
            results.bias_gradient.push(sum);
        }
        results
    }

    fn primitive<B: BatchNormOps + ConvOps>(&self, sync: Option<&Synchronized>) -> Results<f32> {
        self.primitive_of::<B>(sync, |x| x)
    }

    /// With the activations in the memory layout that `arrange` gives them.
    fn primitive_of<B: BatchNormOps + ConvOps>(
        &self,
        sync: Option<&Synchronized>,
        arrange: fn(Tensor<Autodiff<B>, 4>) -> Tensor<Autodiff<B>, 4>,
    ) -> Results<f32> {
        let x = arrange(tensor::<Autodiff<B>, 4>(&self.x, self.shape)).require_grad();
        let [weight, bias] =
            [&self.weight, &self.bias].map(|values| tensor::<Autodiff<B>, 1>(values, [values.len()]).require_grad());
        let done = batch_norm(x.clone(), [weight.clone(), bias.clone()], EPSILON, sync, Epilogue::Identity);
        let gradients = (done.output.clone() * tensor(&self.gradient, self.shape)).sum().backward();
        let [weight_gradient, bias_gradient] =
            [weight, bias].map(|leaf| to_vec(leaf.grad(&gradients).expect("the leaf is tracked")));
        Results {
            output: to_vec(done.output),
            mean: to_vec(done.mean),
            variance: to_vec(done.variance),
            x_gradient: to_vec(x.grad(&gradients).expect("the leaf is tracked")),
            weight_gradient,
            bias_gradient,
        }
    }

    /// With activations and gradients that a precision can hold.
    fn rounded(self, precision: Precision) -> Self {
        Self { x: rounded(self.x, precision), gradient: rounded(self.gradient, precision), ..self }
    }

    /// Images `from..` as a batch of their own.
    fn tail(&self, from: usize) -> Self {
        let start = from * self.shape[1] * self.area();
        let [_, channels, height, width] = self.shape;
        Self {
            shape: [self.shape[0] - from, channels, height, width],
            x: self.x[start..].to_vec(),
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            gradient: self.gradient[start..].to_vec(),
        }
    }
}

impl Results<f32> {
    #[track_caller]
    fn assert_close(&self, expected: &Results<f64>, tolerance: f64) {
        let fields = [
            ("output", &self.output, &expected.output),
            ("mean", &self.mean, &expected.mean),
            ("variance", &self.variance, &expected.variance),
            ("input gradient", &self.x_gradient, &expected.x_gradient),
            ("weight gradient", &self.weight_gradient, &expected.weight_gradient),
            ("bias gradient", &self.bias_gradient, &expected.bias_gradient),
        ];
        for (what, found, expected) in fields {
            assert_close(what, found, expected, tolerance);
        }
    }
}

fn definition<B: BatchNormOps + ConvOps>() {
    for shape in [[4, 3, 5, 7], [1, 17, 4, 4], [3, 2, 40, 33], [32, 5, 1, 1], [2, 1, 1, 9]] {
        let case = Case::new(shape, 0.3, 2.0);
        case.primitive::<B>(None).assert_close(&case.naive(), 2e-5);
        case.primitive_of::<B>(None, |x| arranged(x, true)).assert_close(&case.naive(), 2e-5);
    }
}

/// With `E[x^2] - E[x]^2` in f32 the variance here would be noise.
fn large_mean<B: BatchNormOps + ConvOps>() {
    let case = Case::new([8, 4, 16, 16], 1000.0, 0.5);
    case.primitive::<B>(None).assert_close(&case.naive(), 2e-3);
}

/// Activations in half the bytes: what goes through them is rounded, statistics and parameters are not.
fn in_halves<B: BatchNormOps + HostBackend>() {
    for (precision, tolerance) in HALVES.into_iter().filter(|(precision, _)| computes_in::<B>(*precision)) {
        let dtype = precision.dtype();
        for (offset, innermost) in [(0.0, false), (0.0, true), (100.0, false), (100.0, true)] {
            let case = Case::new([8, 4, 16, 16], offset, 2.0).rounded(precision);
            let expected = case.naive();
            let half = |values: &[f32]| tensor::<Autodiff<B>, 4>(values, case.shape).cast(dtype);
            let x = arranged(half(&case.x), innermost).require_grad();
            let [weight, bias] =
                [&case.weight, &case.bias].map(|v| tensor::<Autodiff<B>, 1>(v, [v.len()]).require_grad());
            let done = batch_norm(x.clone(), [weight.clone(), bias.clone()], EPSILON, None, Epilogue::Identity);
            assert_eq!(done.output.dtype(), dtype);
            assert_eq!([done.mean.dtype(), done.variance.dtype()], [DType::F32; 2]);
            let gradients = (done.output.clone() * half(&case.gradient)).sum().backward();
            assert_close("mean", &to_vec(done.mean), &expected.mean, 2e-5);
            assert_close("variance", &to_vec(done.variance), &expected.variance, 2e-5);
            assert_close("output", &to_vec(done.output.cast(DType::F32)), &expected.output, tolerance);
            assert_close("weight", &to_vec(weight.grad(&gradients).unwrap()), &expected.weight_gradient, 1e-4);
            assert_close("bias", &to_vec(bias.grad(&gradients).unwrap()), &expected.bias_gradient, 1e-4);
            let x_gradient = x.grad(&gradients).unwrap();
            assert_eq!(x_gradient.dtype(), dtype);
            assert_close("input", &to_vec(x_gradient.cast(DType::F32)), &expected.x_gradient, tolerance);
        }
    }
}

fn inference<B: BatchNormOps>() {
    let case = Case::new([2, 3, 4, 5], 0.3, 2.0);
    let expected = case.naive();
    let count = (case.shape[0] * case.area()) as f64;
    let biased: Vec<f32> = expected.variance.iter().map(|value| (value * (count - 1.0) / count) as f32).collect();
    let mean: Vec<f32> = expected.mean.iter().map(|value| *value as f32).collect();
    let statistics = [mean, biased].map(|values| tensor::<B, 1>(&values, [3]));
    let affine = [&case.weight, &case.bias].map(|values| tensor::<B, 1>(values, [3]));
    let factors = inference_factors(statistics, affine, EPSILON);
    let output = normalize(tensor(&case.x, case.shape), factors, Epilogue::Identity);
    assert_close("output", &to_vec(output), &expected.output, 1e-5);
}

/// The rectifier and the shortcut behind it, in every precision and layout; input and shortcut are used twice, so that
/// the gradients that reach them are sums.
fn with_what_is_behind<B: HostBackend>() {
    let halves = HALVES.into_iter().filter(|(precision, _)| computes_in::<B>(*precision));
    for (precision, tolerance) in std::iter::once((Precision::F32, 2e-5)).chain(halves) {
        for shape in [[4, 3, 5, 7], [2, 16, 9, 6], [3, 33, 1, 1]] {
            for (innermost, is_summed) in [(false, false), (false, true), (true, false), (true, true)] {
                behind::<B>(shape, innermost, is_summed, precision, tolerance);
            }
        }
    }
}

fn behind<B: HostBackend>(shape: [usize; 4], innermost: bool, is_summed: bool, precision: Precision, tolerance: f64) {
    let case = Case::new(shape, 0.3, 2.0).rounded(precision);
    let shortcut = rounded(noise(case.x.len(), 21), precision);
    let typed = |values: &[f32]| tensor::<Autodiff<B>, 4>(values, shape).cast(precision.dtype());
    let leaf = |values: &[f32]| arranged(typed(values), innermost).require_grad();
    let (x, other) = (leaf(&case.x), leaf(&shortcut));
    let [weight, bias] = [&case.weight, &case.bias].map(|v| tensor::<Autodiff<B>, 1>(v, [v.len()]).require_grad());
    let epilogue = if is_summed { Epilogue::AddRelu(other.clone()) } else { Epilogue::Relu };
    let output = batch_norm(x.clone(), [weight.clone(), bias.clone()], EPSILON, None, epilogue).output;
    let gradients = ((output.clone() * typed(&case.gradient)).sum() + (x.clone() * other.clone()).sum()).backward();
    let output = to_vec(output.cast(DType::F32));

    let mut before = case.naive().output;
    if is_summed {
        before.iter_mut().zip(&shortcut).for_each(|(value, other)| *value += f64::from(*other));
    }
    let what = |of: &str| format!("{of} of {shape:?}, {precision:?}, innermost {innermost}, summed {is_summed}");
    let expected: Vec<f64> = before.iter().map(|value| value.max(0.0)).collect();
    assert_close(&what("output"), &output, &expected, tolerance);
    // Where rounding decides, the gradient passes if the output is positive.
    let passed = case.gradient.iter().zip(&output).map(|(gradient, out)| if *out > 0.0 { *gradient } else { 0.0 });
    let passed = Case { gradient: passed.collect(), x: case.x.clone(), ..case };
    let mut expected = passed.naive();
    expected.x_gradient.iter_mut().zip(&shortcut).for_each(|(sum, other)| *sum += f64::from(*other));
    let reached = |(x, gradient): (&f32, &f32)| f64::from(*x) + if is_summed { f64::from(*gradient) } else { 0.0 };
    let of_shortcut: Vec<f64> = passed.x.iter().zip(&passed.gradient).map(reached).collect();
    let half = |leaf: Tensor<Autodiff<B>, 4>| to_vec(leaf.grad(&gradients).unwrap().cast(DType::F32));
    let full = |leaf: Tensor<Autodiff<B>, 1>| to_vec(leaf.grad(&gradients).unwrap());
    assert_close(&what("input gradient"), &half(x), &expected.x_gradient, tolerance);
    assert_close(&what("shortcut gradient"), &half(other), &of_shortcut, tolerance);
    assert_close(&what("weight gradient"), &full(weight), &expected.weight_gradient, tolerance);
    assert_close(&what("bias gradient"), &full(bias), &expected.bias_gradient, tolerance);
}

/// A group of two, of which the other replica's messages are known beforehand.
struct Partner {
    forward: Vec<f64>,
    backward: Vec<f64>,
}

impl Partner {
    fn message(&self, direction: Direction, length: usize) -> Vec<f64> {
        let own = match direction {
            Direction::Forward => &self.forward,
            Direction::Backward => &self.backward,
        };
        // Devices send their count in two parts, behind the rest.
        let in_parts = || [&own[1..], &[0.0, own[0]][..]].concat();
        let own = if length > own.len() { in_parts() } else { own.clone() };
        assert_eq!(length, own.len(), "both replicas speak of the same layer");
        own
    }
}

impl StatisticsGroup for Partner {
    fn gather(&self, _: usize, direction: Direction, values: Vec<f64>, combine: Combine) -> Arc<Vec<Vec<f64>>> {
        Arc::new(combine(vec![self.message(direction, values.len()), values]))
    }
}

/// A partner whose messages go from device to device, where there are devices.
struct DevicePartner<B>(Partner, PhantomData<B>);

impl<B: HostOps> StatisticsGroup for DevicePartner<B> {
    fn gather(&self, layer: usize, direction: Direction, values: Vec<f64>, combine: Combine) -> Arc<Vec<Vec<f64>>> {
        assert!(B::is_processor(), "tensors of devices stay there");
        self.0.gather(layer, direction, values, combine)
    }

    fn exchange(&self, _: usize, direction: Direction, own: Payload) -> Option<Payload> {
        let own = Arc::unwrap_or_clone(own.downcast::<Shared<B>>().unwrap());
        let own = Tensor::<B::Below, 1>::from_primitive(TensorPrimitive::Float(own));
        let values: Vec<f32> = self.0.message(direction, own.dims()[0]).iter().map(|value| *value as f32).collect();
        let other = Tensor::from_floats(&values[..], &own.device());
        let all: Shared<B> = Tensor::cat(vec![other, own], 0).into_primitive().tensor();
        Some(Arc::new(all))
    }
}

/// The first `split` images are the partner's, the rest is ours.
fn synchronized<B: BatchNormOps + ConvOps>(group: fn(Partner) -> Arc<dyn StatisticsGroup>) {
    let (whole, split) = (Case::new([5, 6, 7, 3], 0.5, 1.5), 2);
    let (ours, expected) = (whole.tail(split), whole.naive());
    let theirs = split * whole.shape[1] * whole.area();
    let own = |values: &[f64]| values[theirs..].to_vec();
    let mut partner = Partner { forward: vec![(split * whole.area()) as f64], backward: Vec::new() };
    let (mut m2, mut weight_gradients, mut ours_expected) = (Vec::new(), Vec::new(), Results::default());
    for channel in 0..whole.shape[1] {
        let count = (whole.shape[0] * whole.area()) as f64;
        let variance = expected.variance[channel] * (count - 1.0) / count;
        let normal = |i: usize| (f64::from(whole.x[i]) - expected.mean[channel]) / (variance + EPSILON).sqrt();
        let (at, rest): (Vec<usize>, Vec<usize>) = whole.channel(channel).partition(|i| *i < theirs);
        let mean = at.iter().map(|i| f64::from(whole.x[*i])).sum::<f64>() / at.len() as f64;
        partner.forward.push(mean);
        m2.push(at.iter().map(|i| (f64::from(whole.x[*i]) - mean).powi(2)).sum::<f64>());
        let sums = [at, rest].map(|at| {
            let gradient = |i: &usize| f64::from(whole.gradient[*i]);
            (at.iter().map(gradient).sum::<f64>(), at.iter().map(|i| gradient(i) * normal(*i)).sum::<f64>())
        });
        partner.backward.push(sums[0].0);
        weight_gradients.push(sums[0].1);
        ours_expected.bias_gradient.push(sums[1].0);
        ours_expected.weight_gradient.push(sums[1].1);
    }
    partner.forward.extend(m2);
    partner.backward.extend(weight_gradients);
    let samples = [split, whole.shape[0] - split].into();
    let sync = Synchronized { group: group(partner), layer: 0, samples, replica: 1 };
    ours_expected.output = own(&expected.output);
    ours_expected.x_gradient = own(&expected.x_gradient);
    (ours_expected.mean, ours_expected.variance) = (expected.mean, expected.variance);
    ours.primitive::<B>(Some(&sync)).assert_close(&ours_expected, 2e-5);
    ours.primitive_of::<B>(Some(&sync), |x| arranged(x, true)).assert_close(&ours_expected, 2e-5);
}

/// On a device, which expects the counts that the batch has, so as not to read them.
fn samples_of_another_size_are_noticed<B: BatchNormOps + ConvOps>() {
    let case = Case::new([5, 6, 7, 3], 0.5, 1.5);
    let (split, channels) = (2, case.shape[1]);
    // Twice as many values in each image as ours have.
    let forward = [vec![(2 * split * case.area()) as f64], vec![0.5; channels], vec![1.0; channels]].concat();
    let partner = Partner { forward, backward: vec![0.0; 2 * channels] };
    let group = Arc::new(DevicePartner::<B>(partner, PhantomData));
    let sync = Synchronized { group, layer: 0, samples: [split, case.shape[0] - split].into(), replica: 1 };
    let computed = catch_unwind(AssertUnwindSafe(|| case.tail(split).primitive::<B>(Some(&sync))));
    match computed {
        Ok(_) => assert!(B::is_processor(), "only a processor reads the counts with the statistics"),
        Err(panic) => assert!(panic.downcast_ref::<&str>().is_some_and(|words| words.contains("on every replica"))),
    }
}

on_every_backend! {
    batch_norm_and_its_gradients_are_those_of_the_definition => || definition::<TestBackend>();
    what_is_behind_a_batch_norm_goes_with_it => || with_what_is_behind::<TestBackend>();
    a_mean_that_is_large_against_the_deviation_costs_no_digits => || large_mean::<TestBackend>();
    statistics_of_halves_are_those_of_their_exact_values => || in_halves::<TestBackend>();
    batch_norm_by_given_statistics_is_that_of_the_definition => || inference::<TestBackend>();
    half_a_batch_with_a_partner_is_half_of_the_whole => || {
        synchronized::<TestBackend>(|partner| Arc::new(partner));
        synchronized::<TestBackend>(|partner| Arc::new(DevicePartner::<TestBackend>(partner, PhantomData)));
    };
    samples_of_another_size_at_a_partner_are_noticed => || samples_of_another_size_are_noticed::<TestBackend>();
}

#[cfg(feature = "flex")]
#[test]
fn batch_norm_is_the_same_bits_on_any_number_of_threads() {
    let case = Case::new([6, 9, 13, 11], 0.3, 2.0);
    super::assert_independent_of_threads(|| {
        let done = case.primitive::<burn::backend::Flex>(None);
        [done.output, done.mean, done.variance, done.x_gradient, done.weight_gradient, done.bias_gradient].concat()
    });
}
