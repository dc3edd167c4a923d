//! Batch-norm on CubeCL by kernels of Kiln's own: no activation changes its layout between two convolutions.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::Fusion;
use cubecl::prelude::{LaunchArg, SequenceArg, TensorArg};

use super::fusion::{queue, queue_all};
use super::norm_kernels::{
    added_moments, all_moments, all_sums, factors, gradient_factors, input_gradient, masked, normalized, piece_moments,
    piece_sums,
};
use super::row_layout::{RowLayout, images, rows, units};
use crate::batch_norm::free;
use crate::host::MomentWeights;
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
        let channel = channel_like(&x.shape());
        let [mean, m2] =
            queue::<Below<R, F, I, E>, _, _>("batch-norm moments", [x], [channel.clone(), channel], |[x]| {
                let layout = RowLayout::of(&x);
                let ([means, squares], [mean, square]) = (layout.pieces(), layout.per_channel());
                piece_moments::launch::<R>(
                    &layout.client,
                    layout.piece_cubes(),
                    layout.cube(),
                    layout.vector,
                    rows(x).into_tensor_arg(),
                    means.clone().into_tensor_arg(),
                    squares.clone().into_tensor_arg(),
                    layout.rows,
                    layout.columns(),
                    layout.depth(),
                    layout.lanes(),
                    layout.dtype.into(),
                );
                all_moments::launch::<R>(
                    &layout.client,
                    layout.channel_cubes(),
                    layout.cube(),
                    layout.vector,
                    means.into_tensor_arg(),
                    squares.into_tensor_arg(),
                    mean.clone().into_tensor_arg(),
                    square.clone().into_tensor_arg(),
                    layout.rows,
                    layout.columns(),
                    layout.depth(),
                    layout.lanes(),
                );
                [mean, square]
            });
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
        let (like, relu) = ((x.shape(), x.dtype()), !matches!(epilogue, Epilogue::Identity));
        let shortcut = if let Epilogue::AddRelu(shortcut) = epilogue { Some(shortcut) } else { None };
        let inputs = std::iter::once(x).chain(factors).chain(shortcut).collect();
        let [output] = queue_all::<Below<R, F, I, E>, _>("batch-norm", inputs, [like], move |inputs| {
            let ([x, mean, scale, bias], shortcut) = first(inputs);
            let layout = RowLayout::of(&x);
            let output = layout.empty();
            let (count, dim) = layout.units();
            let [mean, scale, bias] = [mean, scale, bias].map(|factor| into_contiguous(factor).into_tensor_arg());
            normalized::launch::<R>(
                &layout.client,
                count,
                dim,
                layout.vector,
                rows(x).into_tensor_arg(),
                mean,
                scale,
                bias,
                arguments(shortcut.into_iter().map(rows)),
                output.clone().into_tensor_arg(),
                layout.vectors(),
                layout.columns(),
                relu,
                layout.dtype.into(),
            );
            [images(output)]
        });
        output
    }

    fn bn_gradient_sums(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        relu: Option<&ReluState<Self>>,
    ) -> [FloatTensor<Self>; 3] {
        let gradient = match relu {
            Some(relu) if relu.mask.is_none() => Self::relu_gradient(relu.output.clone(), gradient),
            _ => gradient,
        };
        let channel = channel_like(&x.shape());
        let inputs = [gradient.clone(), x, mean].into_iter().chain(recomputed(relu)).collect();
        let outputs = [channel.clone(), channel];
        let [sum, product] = queue_all::<Below<R, F, I, E>, _>("batch-norm sums", inputs, outputs, |inputs| {
            let ([gradient, x, mean], relu) = first(inputs);
            let layout = RowLayout::of(&x);
            let ([sums, products], [sum, product]) = (layout.pieces(), layout.per_channel());
            piece_sums::launch::<R>(
                &layout.client,
                layout.piece_cubes(),
                layout.cube(),
                layout.vector,
                rows(gradient).into_tensor_arg(),
                rows(x).into_tensor_arg(),
                into_contiguous(mean).into_tensor_arg(),
                arguments(relu.into_iter().map(into_contiguous)),
                sums.clone().into_tensor_arg(),
                products.clone().into_tensor_arg(),
                layout.rows,
                layout.columns(),
                layout.depth(),
                layout.lanes(),
                layout.dtype.into(),
            );
            all_sums::launch::<R>(
                &layout.client,
                layout.channel_cubes(),
                layout.cube(),
                layout.vector,
                sums.into_tensor_arg(),
                products.into_tensor_arg(),
                sum.clone().into_tensor_arg(),
                product.clone().into_tensor_arg(),
                layout.piece_count(),
                layout.columns(),
                layout.lanes(),
            );
            [sum, product]
        });
        [gradient, sum, product]
    }

    fn bn_gradient_factors(
        weight: FloatTensor<Self>,
        inv_std: FloatTensor<Self>,
        [sum, weighted]: [FloatTensor<Self>; 2],
        share: f64,
    ) -> [FloatTensor<Self>; 3] {
        let outputs = [(); 3].map(|()| (weight.shape(), DType::F32));
        let inputs = [weight, inv_std, sum, weighted];
        queue::<Below<R, F, I, E>, _, _>("batch-norm gradient factors", inputs, outputs, move |inputs| {
            let made = [(); 3].map(|()| like(&inputs[0]));
            let (client, channels) = (inputs[0].client.clone(), inputs[0].shape().num_elements());
            let (cubes, dim) = units(&client, channels);
            let [weight, inv_std, sum, weighted] = inputs.map(|values| into_contiguous(values).into_tensor_arg());
            let [k, q, r] = made.each_ref().map(|factor| factor.clone().into_tensor_arg());
            gradient_factors::launch::<R>(
                &client,
                cubes,
                dim,
                1,
                weight,
                inv_std,
                sum,
                weighted,
                k,
                q,
                r,
                share as f32,
                channels,
            );
            made
        })
    }

    fn bn_input_gradient(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        [k, q, r]: [FloatTensor<Self>; 3],
        relu: Option<&ReluState<Self>>,
    ) -> FloatTensor<Self> {
        let like = (x.shape(), x.dtype());
        let inputs = [gradient, x, mean, k, q, r].into_iter().chain(recomputed(relu)).collect();
        let [result] = queue_all::<Below<R, F, I, E>, _>("batch-norm gradient", inputs, [like], |inputs| {
            let ([gradient, x, mean, k, q, r], relu) = first(inputs);
            let layout = RowLayout::of(&x);
            let result = layout.empty();
            let (count, dim) = layout.units();
            let [mean, k, q, r] = [mean, k, q, r].map(|factor| into_contiguous(factor).into_tensor_arg());
            input_gradient::launch::<R>(
                &layout.client,
                count,
                dim,
                layout.vector,
                rows(gradient).into_tensor_arg(),
                rows(x).into_tensor_arg(),
                mean,
                k,
                q,
                r,
                arguments(relu.into_iter().map(into_contiguous)),
                result.clone().into_tensor_arg(),
                layout.vectors(),
                layout.columns(),
                layout.dtype.into(),
            );
            [images(result)]
        });
        result
    }
}

/// Scale and bias of a ReLU whose mask follows from the input of the batch-norm.
fn recomputed<B: Backend>(relu: Option<&ReluState<B>>) -> impl Iterator<Item = FloatTensor<B>> {
    relu.and_then(|relu| relu.mask.clone()).into_iter().flatten()
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

/// Tensors of which a kernel takes any number.
pub(super) fn arguments<R: CubeRuntime, T>(tensors: impl IntoIterator<Item = CubeTensor<R>>) -> SequenceArg<R, T>
where
    T: LaunchArg<RuntimeArg<R> = TensorArg<R>>,
{
    tensors.into_iter().map(CubeTensor::into_tensor_arg).collect()
}
