//! Batch-norm on CubeCL by kernels of Kiln's own: no activation changes its layout between two convolutions.

use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::Fusion;

use super::fusion::{queue, queue_all, queue_many};
use super::norm_kernels::{added_moments, factors, masked};
use super::norm_passes::{from_sums, normalize, sums, whole_moments};
use super::row_layout::{RowLayout, images, rows, units};
use crate::batch_norm::{Normalized, free, in_steps};
use crate::host::MomentWeights;
use crate::statistics::Synchronized;
use crate::{BatchNormOps, Epilogue, GradientOps, ReluState};

type Below<R, F, I, E> = CubeBackend<R, F, I, E>;

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> GradientOps for Fusion<Below<R, F, I, E>> {
    fn relu_gradient(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let like = (gradient.shape(), gradient.dtype());
        let [masked] =
            queue::<Below<R, F, I, E>, _, _>("relu gradient", [gradient, output], [like], |[gradient, output]| {
                let layout = RowLayout::of(&gradient);
                let ([gradient, output], result) = ([gradient, output].map(rows), layout.empty());
                let (count, dim) = layout.units();
                masked::launch::<R>(
                    &layout.client,
                    count,
                    dim,
                    layout.vector,
                    gradient.into_tensor_arg(),
                    output.into_tensor_arg(),
                    result.clone().into_tensor_arg(),
                    layout.vectors(),
                    layout.dtype.into(),
                );
                [images(result)]
            });
        masked
    }

    /// Burn's sum, on rows: it returns them, too.
    fn sum(one: FloatTensor<Self>, other: FloatTensor<Self>) -> FloatTensor<Self> {
        if one.shape().num_dims() != 4 {
            return Self::float_add(one, other);
        }
        let like = (one.shape(), one.dtype());
        let [sum] = queue::<Below<R, F, I, E>, _, _>("sum of gradients", [one, other], [like], |both| {
            let [one, other] = both.map(rows);
            [images(Below::<R, F, I, E>::float_add(one, other))]
        });
        sum
    }
}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> BatchNormOps for Fusion<Below<R, F, I, E>> {
    fn bn_moments(x: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let outputs = [(); 2].map(|()| channel_like(&x.shape()));
        let run = |[x]: [_; 1]| whole_moments(&RowLayout::of(&x), x, None);
        let [mean, m2] = queue::<Below<R, F, I, E>, _, _>("batch-norm moments", [x], outputs, run);
        (mean, m2)
    }

    fn bn_factors(
        m2: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        count: f64,
        epsilon: f64,
    ) -> [FloatTensor<Self>; 3] {
        let outputs = [(); 3].map(|()| (m2.shape(), DType::F32));
        queue::<Below<R, F, I, E>, _, _>("batch-norm factors", [m2, weight], outputs, move |[m2, weight]| {
            let (client, channels) = (m2.client.clone(), m2.shape().num_elements());
            let (cubes, dim) = units(&client, channels);
            let [inv_std, scale, variance] = [(); 3].map(|()| like(&m2));
            factors::launch::<R>(
                &client,
                cubes,
                dim,
                1,
                into_contiguous(m2).into_tensor_arg(),
                into_contiguous(weight).into_tensor_arg(),
                inv_std.clone().into_tensor_arg(),
                scale.clone().into_tensor_arg(),
                variance.clone().into_tensor_arg(),
                count as f32,
                free(count) as f32,
                epsilon as f32,
                channels,
            );
            [inv_std, scale, variance]
        })
    }

    fn bn_normalize(
        x: FloatTensor<Self>,
        factors: [FloatTensor<Self>; 3],
        epilogue: Epilogue<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        let (like, (relu, shortcut)) = ((x.shape(), x.dtype()), parts(epilogue));
        let inputs = std::iter::once(x).chain(factors).chain(shortcut).collect();
        let [output] = queue_all::<Below<R, F, I, E>, _>("batch-norm", inputs, [like], move |inputs| {
            let ([x, mean, scale, bias], shortcut) = first(inputs);
            [normalize(&RowLayout::of(&x), x, [mean, scale, bias], shortcut, relu)]
        });
        output
    }

    /// In three kernels, if nobody else has a part of the batch.
    fn bn_train(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        sync: Option<&Synchronized>,
        epilogue: Epilogue<FloatTensor<Self>>,
    ) -> Normalized<Self> {
        if sync.is_some() {
            return in_steps::<Self>(x, [weight, bias], epsilon, sync, epilogue);
        }
        let ((relu, shortcut), channel) = (parts(epilogue), channel_like(&x.shape()));
        let count = (x.shape().num_elements() / x.shape()[1]) as f64;
        let outputs = [(x.shape(), x.dtype()), channel.clone(), channel.clone(), channel.clone(), channel];
        let inputs = [x, weight, bias].into_iter().chain(shortcut).collect();
        let run = move |inputs| {
            let ([x, weight, bias], shortcut) = first(inputs);
            let (layout, x) = (RowLayout::of(&x), images(rows(x)));
            let [mean, inv_std, scale, variance] = whole_moments(&layout, x.clone(), Some((weight, epsilon)));
            let output = normalize(&layout, x, [mean.clone(), scale.clone(), bias], shortcut, relu);
            [output, mean, variance, inv_std, scale]
        };
        let made = queue_all::<Below<R, F, I, E>, _>("batch-norm in training", inputs, outputs, run);
        let [output, mean, variance, inv_std, scale] = made;
        Normalized { output, mean, variance, inv_std, scale: Some(scale), count }
    }

    /// In three kernels, and what `all` does.
    fn bn_gradients(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        [mean, inv_std]: [FloatTensor<Self>; 2],
        relu: Option<&ReluState<Self>>,
        all: impl FnOnce([FloatTensor<Self>; 2]) -> ([FloatTensor<Self>; 2], f64),
    ) -> [FloatTensor<Self>; 4] {
        let (like, channel) = ((x.shape(), x.dtype()), channel_like(&x.shape()));
        // The ReLU's scale and bias, or its output where a shortcut was added.
        let behind = relu.map_or_else(Vec::new, |relu| match &relu.mask {
            Some(mask) => mask.to_vec(),
            None => vec![relu.output.clone()],
        });
        let is_summed = behind.len() == 1;
        let outputs = [channel.clone(), channel].into_iter().chain(is_summed.then(|| like.clone())).collect();
        let inputs = [&gradient, &x, &mean, &inv_std].into_iter().chain(&behind).cloned().collect();
        let run = |inputs| {
            let (inputs, behind) = first(inputs);
            sums(inputs, behind)
        };
        let mut made = queue_many::<Below<R, F, I, E>>("batch-norm sums", inputs, outputs, run).into_iter();
        let [bias_gradient, weight_gradient] = [(); 2].map(|()| made.next().expect("there are two sums"));
        let (passed, mask) = made.next().map_or((gradient, behind), |passed| (passed, Vec::new()));
        let (totals, share) = all([bias_gradient.clone(), weight_gradient.clone()]);
        let inputs = [passed.clone(), x, mean, inv_std, weight].into_iter().chain(totals).chain(mask).collect();
        let [x_gradient] = queue_all::<Below<R, F, I, E>, _>("batch-norm gradient", inputs, [like], move |inputs| {
            let ([gradient, x, channels @ ..], mask) = first::<_, 7>(inputs);
            [from_sums([gradient, x], channels, mask, share)]
        });
        [x_gradient, weight_gradient, bias_gradient, passed]
    }
}

/// Whether there is a ReLU, and the shortcut.
fn parts<T>(epilogue: Epilogue<T>) -> (bool, Option<T>) {
    match epilogue {
        Epilogue::Identity => (false, None),
        Epilogue::Relu => (true, None),
        Epilogue::AddRelu(shortcut) => (true, Some(shortcut)),
    }
}

fn first<R: CubeRuntime, const N: usize>(mut tensors: Vec<CubeTensor<R>>) -> ([CubeTensor<R>; N], Vec<CubeTensor<R>>) {
    let others = tensors.split_off(N);
    (tensors.try_into().unwrap_or_else(|_| unreachable!("they were counted")), others)
}

/// The body of [`HostOps::add_moments`](crate::HostOps::add_moments), in one kernel.
pub(super) fn add_moments<R: CubeRuntime>(
    left: [CubeTensor<R>; 2],
    right: [CubeTensor<R>; 2],
    counts: [f64; 2],
) -> [CubeTensor<R>; 2] {
    let weights = MomentWeights::of(counts);
    let (client, channels) = (left[0].client.clone(), left[0].shape().num_elements());
    let made = [(); 2].map(|()| like(&left[0]));
    let (cubes, dim) = units(&client, channels);
    let [mean, square] = left.map(|values| into_contiguous(values).into_tensor_arg());
    let [other_mean, other_square] = right.map(|values| into_contiguous(values).into_tensor_arg());
    added_moments::launch::<R>(
        &client,
        cubes,
        dim,
        1,
        mean,
        square,
        other_mean,
        other_square,
        made[0].clone().into_tensor_arg(),
        made[1].clone().into_tensor_arg(),
        weights.right as f32,
        weights.between as f32,
        channels,
    );
    made
}

/// A tensor of one f32 per channel, not yet written, where another is.
fn like<R: CubeRuntime>(values: &CubeTensor<R>) -> CubeTensor<R> {
    empty_device_contiguous_dtype(values.client.clone(), values.device.clone(), values.shape(), DType::F32)
}

/// Shape and type of one f32 per channel of images of `shape`.
fn channel_like(shape: &Shape) -> (Shape, DType) {
    (Shape::new([shape[1]]), DType::F32)
}
