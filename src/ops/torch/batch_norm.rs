//! Batch-norm on LibTorch's tensors: NHWC tensors on the CPU by the loops of [`BatchNorm`], others by ATen's, in
//! `norm_kernels.rs`.

use burn::backend::LibTorch;
use burn::backend::libtorch::TchTensor;
use kiln_kernels::{Activation, BatchNorm, Epilogue as HostEpilogue};
use tch::{Device, Tensor};

use super::host_conv::{from_nhwc, to_nhwc};
use super::memory::{Value, exclusive, is_activation, of_kind, parallel_for, uninit_mut, values, values_mut};
use super::norm_kernels;
use crate::batch_norm::{BatchNormOps, Normalized, in_steps};
use crate::epilogue::{Epilogue, ReluState, apply_epilogue, epilogue_backward};
use crate::statistics::Synchronized;

/// The loops, if `x` is a tensor on the CPU with channels innermost.
fn on_host(x: &TchTensor) -> Option<BatchNorm> {
    let is_ours = x.tensor.device() == Device::Cpu && is_activation(x.tensor.kind());
    let channels = usize::try_from(x.tensor.size()[1]).expect("sizes are not negative");
    let is_nhwc = is_ours && x.tensor.permute([0, 2, 3, 1]).is_contiguous();
    is_nhwc.then_some(BatchNorm { channels, parallel_for })
}

impl BatchNormOps for LibTorch<f32> {
    fn bn_moments(x: TchTensor) -> (TchTensor, TchTensor) {
        if let Some(norm) = on_host(&x) {
            let [mean, m2] = of_kind!(x.tensor.kind(), T => moments::<T>(norm, &x));
            return (mean, m2);
        }
        norm_kernels::moments(&x)
    }

    fn bn_normalize(x: TchTensor, factors: [TchTensor; 3], epilogue: Epilogue<TchTensor>) -> TchTensor {
        if let Some(norm) = on_host(&x) {
            return of_kind!(x.tensor.kind(), T => normalize::<T>(norm, &x, factors, epilogue));
        }
        let [mean, scale, bias] = factors;
        apply_epilogue::<Self>(norm_kernels::apply(&x, &mean, &scale, &bias), epilogue)
    }

    fn bn_gradient_sums(
        gradient: TchTensor,
        x: TchTensor,
        mean: TchTensor,
        relu: Option<&ReluState<Self>>,
    ) -> [TchTensor; 3] {
        if let Some(norm) = on_host(&x) {
            return of_kind!(x.tensor.kind(), T => gradient_sums::<T>(norm, gradient, &x, &mean, relu));
        }
        let gradient = epilogue_backward::<Self>(gradient, relu);
        let [sum, weighted] = norm_kernels::gradient_sums(&gradient, &x, &mean);
        [gradient, sum, weighted]
    }

    fn bn_input_gradient(
        gradient: TchTensor,
        x: TchTensor,
        mean: TchTensor,
        [k, q, r]: [TchTensor; 3],
        relu: Option<&ReluState<Self>>,
    ) -> TchTensor {
        if let Some(norm) = on_host(&x) {
            return of_kind!(x.tensor.kind(), T => input_gradient::<T>(norm, &gradient, &x, [mean, k, q, r], relu));
        }
        let minus = |tensor: TchTensor| TchTensor::new(-tensor.tensor);
        let mut sum = norm_kernels::apply(&x, &mean, &minus(q), &minus(r)).tensor;
        let channels = k.tensor.size()[0];
        TchTensor::new(sum.addcmul_(&gradient.tensor, &k.tensor.view([1, channels, 1, 1])))
    }

    fn bn_local_gradients(
        gradient: TchTensor,
        x: TchTensor,
        weight: TchTensor,
        statistics: [TchTensor; 2],
        count: f64,
        relu: Option<&ReluState<Self>>,
    ) -> [TchTensor; 4] {
        if on_host(&x).is_some() {
            return Self::bn_gradients(gradient, x, weight, statistics, relu, |totals| (totals, 1.0 / count));
        }
        let gradient = epilogue_backward::<Self>(gradient, relu);
        let [dx, dweight, dbias] = norm_kernels::gradients(&gradient, &x, &weight, statistics.each_ref());
        [dx, dweight, dbias, gradient]
    }

    /// A GPU waits for the thread that launches its kernels: alone on one, a replica needs two for what takes ten.
    fn bn_train(
        x: TchTensor,
        weight: TchTensor,
        bias: TchTensor,
        epsilon: f64,
        sync: Option<&Synchronized>,
        epilogue: Epilogue<TchTensor>,
    ) -> Normalized<Self> {
        let count = x.tensor.numel() / weight.tensor.numel();
        if sync.is_some() || x.tensor.device() == Device::Cpu || count < 2 {
            return in_steps::<Self>(x, [weight, bias], epsilon, sync, epilogue);
        }
        let [output, mean, variance, inv_std] = norm_kernels::train(&x, &weight, &bias, epsilon);
        let output = apply_epilogue::<Self>(output, epilogue);
        Normalized { output, mean, variance, inv_std, scale: None, count: count as f64 }
    }

    fn bn_running(
        running: Vec<TchTensor>,
        batch: Vec<TchTensor>,
        counts: Vec<TchTensor>,
        momentum: f64,
    ) -> (Vec<TchTensor>, Vec<TchTensor>) {
        norm_kernels::average(&running, &batch, momentum);
        norm_kernels::count(&counts);
        (running, counts)
    }
}

fn moments<T: Activation + Value>(norm: BatchNorm, x: &TchTensor) -> [TchTensor; 2] {
    norm.moments::<T>(values(&to_nhwc(x))).map(per_channel)
}

fn normalize<T: Activation + Value>(
    norm: BatchNorm,
    x: &TchTensor,
    factors: [TchTensor; 3],
    epilogue: Epilogue<TchTensor>,
) -> TchTensor {
    let x = to_nhwc(x);
    let mut output = TchTensor::new(x.empty_like());
    with_epilogue::<T, _>(factors, epilogue, |epilogue| {
        norm.normalize(values(&x), &epilogue, uninit_mut(&mut output));
    });
    from_nhwc(output)
}

fn gradient_sums<T: Activation + Value>(
    norm: BatchNorm,
    gradient: TchTensor,
    x: &TchTensor,
    mean: &TchTensor,
    relu: Option<&ReluState<LibTorch<f32>>>,
) -> [TchTensor; 3] {
    let mut gradient = TchTensor::from_existing(to_nhwc(&gradient), gradient.storage);
    if let Some(relu) = relu.filter(|relu| relu.mask.is_none()) {
        gradient = exclusive(gradient);
        norm.relu_backward::<T>(values_mut(&mut gradient), values(&to_nhwc(&relu.output)));
    }
    let (x, mean, mask) = (to_nhwc(x), mean.tensor.contiguous(), mask(relu));
    let mask = mask.as_ref().map(|factors| factors.each_ref().map(values));
    let sums = norm.gradient_sums::<T>(values(&gradient.tensor), values(&x), values(&mean), mask);
    let [sum, weighted] = sums.map(per_channel);
    [from_nhwc(gradient), sum, weighted]
}

fn input_gradient<T: Activation + Value>(
    norm: BatchNorm,
    gradient: &TchTensor,
    x: &TchTensor,
    factors: [TchTensor; 4],
    relu: Option<&ReluState<LibTorch<f32>>>,
) -> TchTensor {
    let (gradient, x, mask) = (to_nhwc(gradient), to_nhwc(x), mask(relu));
    let mask = mask.as_ref().map(|factors| factors.each_ref().map(values));
    let factors = factors.map(|factor| factor.tensor.contiguous());
    let mut output = TchTensor::new(x.empty_like());
    let factors = factors.each_ref().map(values);
    norm.input_gradient::<T>(values(&gradient), values(&x), factors, mask, uninit_mut(&mut output));
    from_nhwc(output)
}

/// `work` with mean, scale and bias and an epilogue in the host's memory.
pub(super) fn with_epilogue<T: Value, R>(
    factors: [TchTensor; 3],
    epilogue: Epilogue<TchTensor>,
    work: impl FnOnce(HostEpilogue<T>) -> R,
) -> R {
    let relu = !matches!(epilogue, Epilogue::Identity);
    let shortcut = if let Epilogue::AddRelu(shortcut) = epilogue { Some(to_nhwc(&shortcut)) } else { None };
    let factors = factors.map(|factor| factor.tensor.contiguous());
    work(HostEpilogue { factors: factors.each_ref().map(values), shortcut: shortcut.as_ref().map(values), relu })
}

/// Scale and bias that give the sign of the output, if no shortcut was added.
fn mask(relu: Option<&ReluState<LibTorch<f32>>>) -> Option<[Tensor; 2]> {
    relu.and_then(|relu| relu.mask.as_ref()).map(|factors| factors.each_ref().map(|factor| factor.tensor.contiguous()))
}

fn per_channel(values: Vec<f32>) -> TchTensor {
    TchTensor::new(Tensor::from_slice(&values))
}
