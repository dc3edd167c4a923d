//! Batch normalisation as one differentiable primitive, optionally synchronised over replicas and fused with the
//! residual sum and ReLU that follow it.
//!
//! Ioffe and Szegedy 2015; the gradient is the closed form, not the graph of the composed operations. The default
//! bodies use the view `[batch * channels, height * width]`, where a per-channel value is one number per row: CPU
//! backends have fast loops for that, and no axes are swapped. Activations may be bf16 or f16; statistics, scale, shift
//! and arithmetic are f32. `batch_norm_backward.rs` is its node on the graph, `exchange.rs` the way to other replicas.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{FloatDType, Shape, Tensor, TensorMetadata};

use super::epilogue::{Epilogue, ReluState, apply_epilogue, epilogue_backward};
use super::exchange::moments;
use super::gradient::GradientOps;
use super::host::HostOps;
use super::precision::as_type;
use super::statistics::Synchronized;
use super::{primitive, tensor};

/// The result of training-mode batch-norm, as backend primitives.
#[derive(Debug, Clone)]
pub struct Normalized<B: Backend> {
    /// The output, `[batch, channels, height, width]`.
    pub output: FloatTensor<B>,
    /// Mean over the (global) batch, `[channels]`.
    pub mean: FloatTensor<B>,
    /// Unbiased variance over the (global) batch, `[channels]`; zero if there is one value per channel.
    pub variance: FloatTensor<B>,
    /// `1 / sqrt(biased variance + eps)`, `[channels]`.
    pub inv_std: FloatTensor<B>,
    /// `weight * inv_std`, `[channels]`, if the backward pass may use it.
    pub scale: Option<FloatTensor<B>>,
    /// Values per channel in the (global) batch.
    pub count: f64,
}

/// The steps of batch-norm that a backend may override with faster kernels. Activations and their gradients are
/// `[batch, channels, height, width]`, all other tensors `[channels]`.
pub trait BatchNormOps: GradientOps + HostOps {
    /// Mean and sum of squared deviations per channel, in two passes.
    fn bn_moments(x: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let view = ChannelRows::of(&x.shape());
        let x = view.rows::<Self>(full::<Self>(x));
        let mean = Self::float_div_scalar(view.channel_sum::<Self>(x.clone()), view.count().into());
        let deviation = Self::float_sub(x, view.broadcast::<Self>(mean.clone()));
        (mean, view.channel_sum::<Self>(Self::float_mul(deviation.clone(), deviation)))
    }

    /// `1 / sqrt(biased variance + epsilon)`, that times `weight`, and the unbiased variance, from the sum `m2` of the
    /// squared deviations of `count` values per channel.
    fn bn_factors(
        m2: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        count: f64,
        epsilon: f64,
    ) -> [FloatTensor<Self>; 3] {
        let biased = Self::float_div_scalar(m2.clone(), count.into());
        let inv_std = Self::float_recip(Self::float_sqrt(Self::float_add_scalar(biased, epsilon.into())));
        let scale = Self::float_mul(weight, inv_std.clone());
        [inv_std, scale, Self::float_div_scalar(m2, free(count).into())]
    }

    /// `(x - mean) * scale + bias`, then the epilogue.
    fn bn_normalize(
        x: FloatTensor<Self>,
        factors: [FloatTensor<Self>; 3],
        epilogue: Epilogue<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        normalized::<Self>(x, factors, epilogue)
    }

    /// The gradient with respect to the ReLU's input, and its `sum(gradient)` and `sum(gradient * (x - mean))` per
    /// channel. Without a shortcut a backend may return the first unmasked and apply the mask again in
    /// [`BatchNormOps::bn_input_gradient`].
    fn bn_gradient_sums(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        relu: Option<&ReluState<Self>>,
    ) -> [FloatTensor<Self>; 3] {
        let gradient = epilogue_backward::<Self>(gradient, relu);
        let view = ChannelRows::of(&x.shape());
        let rows = view.rows::<Self>(full::<Self>(gradient.clone()));
        let centred = Self::float_sub(view.rows::<Self>(full::<Self>(x)), view.broadcast::<Self>(mean));
        let product = Self::float_mul(rows.clone(), centred);
        [gradient, view.channel_sum::<Self>(rows), view.channel_sum::<Self>(product)]
    }

    /// The product of the second sum of [`BatchNormOps::bn_gradient_sums`] and the inverse standard deviation.
    fn bn_weight_gradient(weighted: FloatTensor<Self>, inv_std: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_mul(weighted, inv_std)
    }

    /// The factors `k`, `q`, `r` of [`BatchNormOps::bn_input_gradient`] from the sums over the whole batch of the
    /// gradient, and of the gradient times the normalised input; `share` is one over its number of values per channel.
    fn bn_gradient_factors(
        weight: FloatTensor<Self>,
        inv_std: FloatTensor<Self>,
        [sum, weighted]: [FloatTensor<Self>; 2],
        share: f64,
    ) -> [FloatTensor<Self>; 3] {
        let k = Self::float_mul(weight, inv_std.clone());
        let weighted = Self::float_mul_scalar(weighted, share.into());
        let q = Self::float_mul(Self::float_mul(k.clone(), inv_std), weighted);
        let r = Self::float_mul(k.clone(), Self::float_mul_scalar(sum, share.into()));
        [k, q, r]
    }

    /// The gradient of the input, `gradient * k - (x - mean) * q - r`; `gradient` is the first result of
    /// [`BatchNormOps::bn_gradient_sums`].
    fn bn_input_gradient(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        [k, q, r]: [FloatTensor<Self>; 3],
        _relu: Option<&ReluState<Self>>,
    ) -> FloatTensor<Self> {
        let (shape, dtype) = (x.shape(), x.dtype());
        let view = ChannelRows::of(&shape);
        let centred = Self::float_sub(view.rows::<Self>(full::<Self>(x)), view.broadcast::<Self>(mean));
        let direct = Self::float_mul(view.rows::<Self>(full::<Self>(gradient)), view.broadcast::<Self>(k));
        let indirect = Self::float_add(Self::float_mul(centred, view.broadcast::<Self>(q)), view.broadcast::<Self>(r));
        as_type::<Self>(Self::float_reshape(Self::float_sub(direct, indirect), shape), dtype.into())
    }

    /// Gradients of input, weight, bias and shortcut without synchronisation. Ignore the last if there is no shortcut.
    ///
    /// `d/dx = k (g - mean(g) - x_hat mean(g x_hat))` with `k = weight * inv_std`, means over the batch.
    fn bn_local_gradients(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        statistics: [FloatTensor<Self>; 2],
        count: f64,
        relu: Option<&ReluState<Self>>,
    ) -> [FloatTensor<Self>; 4] {
        Self::bn_gradients(gradient, x, weight, statistics, relu, |totals| (totals, 1.0 / count))
    }

    /// The gradients of [`BatchNormOps::bn_local_gradients`]. `all` maps this replica's sums (of the gradient, and of
    /// the gradient times the normalised input) to those of the whole batch, and returns one over its number of values.
    fn bn_gradients(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        [mean, inv_std]: [FloatTensor<Self>; 2],
        relu: Option<&ReluState<Self>>,
        all: impl FnOnce([FloatTensor<Self>; 2]) -> ([FloatTensor<Self>; 2], f64),
    ) -> [FloatTensor<Self>; 4] {
        let [gradient, bias_gradient, weighted] = Self::bn_gradient_sums(gradient, x.clone(), mean.clone(), relu);
        let weight_gradient = Self::bn_weight_gradient(weighted, inv_std.clone());
        let (totals, share) = all([bias_gradient.clone(), weight_gradient.clone()]);
        let factors = Self::bn_gradient_factors(weight, inv_std, totals, share);
        let x_gradient = Self::bn_input_gradient(gradient.clone(), x, mean, factors, relu);
        [x_gradient, weight_gradient, bias_gradient, gradient]
    }

    /// Training-mode batch-norm; with `sync`, over the batch of the whole group.
    fn bn_train(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        sync: Option<&Synchronized>,
        epilogue: Epilogue<FloatTensor<Self>>,
    ) -> Normalized<Self> {
        in_steps::<Self>(x, [weight, bias], epsilon, sync, epilogue)
    }

    /// `[first, second, length]` as `[second, first, length]`.
    fn bn_swapped(x: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_swap_dims(x, 0, 1)
    }

    /// `running * (1 - momentum) + batch * momentum` of each pair, and each of `counts` plus one; in their places, if
    /// [updates are](crate::UpdateOps::IN_PLACE).
    fn bn_running(
        running: Vec<FloatTensor<Self>>,
        batch: Vec<FloatTensor<Self>>,
        counts: Vec<IntTensor<Self>>,
        momentum: f64,
    ) -> (Vec<FloatTensor<Self>>, Vec<IntTensor<Self>>) {
        let average = |(running, batch)| {
            let running = Self::float_mul_scalar(running, (1.0 - momentum).into());
            Self::float_add(running, Self::float_mul_scalar(batch, momentum.into()))
        };
        let averages = running.into_iter().zip(batch).map(average).collect();
        (averages, counts.into_iter().map(|count| Self::int_add_scalar(count, 1.into())).collect())
    }
}

/// [`BatchNormOps::bn_normalize`] in Burn's operations.
pub(super) fn normalized<B: BatchNormOps>(
    x: FloatTensor<B>,
    [mean, scale, bias]: [FloatTensor<B>; 3],
    epilogue: Epilogue<FloatTensor<B>>,
) -> FloatTensor<B> {
    let (shape, dtype) = (x.shape(), x.dtype());
    let view = ChannelRows::of(&shape);
    let centred = B::float_sub(view.rows::<B>(full::<B>(x)), view.broadcast::<B>(mean));
    let scaled = B::float_mul(centred, view.broadcast::<B>(scale));
    let output = B::float_reshape(B::float_add(scaled, view.broadcast::<B>(bias)), shape);
    apply_epilogue::<B>(as_type::<B>(output, dtype.into()), epilogue)
}

/// [`BatchNormOps::bn_train`] by the other functions.
pub(super) fn in_steps<B: BatchNormOps>(
    x: FloatTensor<B>,
    [weight, bias]: [FloatTensor<B>; 2],
    epsilon: f64,
    sync: Option<&Synchronized>,
    epilogue: Epilogue<FloatTensor<B>>,
) -> Normalized<B> {
    let mut count = ChannelRows::of(&x.shape()).count();
    let (mut mean, mut m2) = B::bn_moments(x.clone());
    if let Some(sync) = sync {
        (count, [mean, m2]) = moments::<B>(sync, count, [mean, m2]);
    }
    let [inv_std, scale, variance] = B::bn_factors(m2, weight, count, epsilon);
    let output = B::bn_normalize(x, [mean.clone(), scale.clone(), bias], epilogue);
    Normalized { output, mean, variance, inv_std, scale: Some(scale), count }
}

/// The divisor of an unbiased variance of `count` values.
pub(super) fn free(count: f64) -> f64 {
    (count - 1.0).max(1.0)
}

/// The tensor in f32, the type of all arithmetic here.
fn full<B: HostOps>(x: FloatTensor<B>) -> FloatTensor<B> {
    as_type::<B>(x, FloatDType::F32)
}

/// `[batch, channels, height, width]` seen as `[batch * channels, height * width]`.
#[derive(Clone, Copy)]
struct ChannelRows {
    batch: usize,
    channels: usize,
    area: usize,
}

impl ChannelRows {
    fn of(shape: &Shape) -> Self {
        let (batch, channels) = (shape[0], shape[1]);
        Self { batch, channels, area: shape.num_elements() / (batch * channels) }
    }

    fn count(self) -> f64 {
        (self.batch * self.area) as f64
    }

    fn rows<B: Backend>(self, x: FloatTensor<B>) -> FloatTensor<B> {
        B::float_reshape(x, Shape::new([self.batch * self.channels, self.area]))
    }

    /// Sum over batch and area of a row view, `[channels]`.
    fn channel_sum<B: Backend>(self, rows: FloatTensor<B>) -> FloatTensor<B> {
        let per_row = B::float_reshape(B::float_sum_dim(rows, 1), Shape::new([self.batch, self.channels]));
        B::float_reshape(B::float_sum_dim(per_row, 0), Shape::new([self.channels]))
    }

    /// `[channels]` to one value per row.
    fn broadcast<B: Backend>(self, values: FloatTensor<B>) -> FloatTensor<B> {
        let row = B::float_reshape(values, Shape::new([1, self.channels]));
        B::float_reshape(B::float_repeat_dim(row, 0, self.batch), Shape::new([self.batch * self.channels, 1]))
    }
}

/// The result of [`batch_norm`].
#[derive(Debug, Clone)]
pub struct BatchNormOutput<B: Backend> {
    /// Normalised activations `[batch, channels, height, width]`.
    pub output: Tensor<B, 4>,
    /// Mean over the (global) batch, `[channels]`, untracked.
    pub mean: Tensor<B, 1>,
    /// Unbiased variance over the (global) batch, `[channels]`, untracked; zero if there is one value per channel.
    pub variance: Tensor<B, 1>,
}

/// Training-mode batch-norm with the statistics of this batch or, with `sync`, of the whole group's batch, followed by
/// `epilogue`.
///
/// `x` is `[batch, channels, height, width]`, `weight` and `bias` are `[channels]`.
pub fn batch_norm<B: BatchNormOps>(
    x: Tensor<B, 4>,
    [weight, bias]: [Tensor<B, 1>; 2],
    epsilon: f64,
    sync: Option<&Synchronized>,
    epilogue: Epilogue<Tensor<B, 4>>,
) -> BatchNormOutput<B> {
    let done = B::bn_train(primitive(x), primitive(weight), primitive(bias), epsilon, sync, epilogue.map(primitive));
    BatchNormOutput { output: tensor(done.output), mean: tensor(done.mean), variance: tensor(done.variance) }
}

/// Mean, scale and bias of batch-norm in evaluation mode, `(x - mean) / sqrt(variance + epsilon) * weight + bias`, for
/// [`normalize`]; all are `[channels]`.
pub fn inference_factors<B: Backend>(
    [mean, variance]: [Tensor<B, 1>; 2],
    [weight, bias]: [Tensor<B, 1>; 2],
    epsilon: f64,
) -> [Tensor<B, 1>; 3] {
    [mean, weight * (variance + epsilon).sqrt().recip(), bias]
}

/// `(x - mean) * scale + bias`, followed by `epilogue`; `x` is `[batch, channels, height, width]`, the factors are
/// mean, scale and bias, `[channels]`.
pub fn normalize<B: BatchNormOps>(
    x: Tensor<B, 4>,
    factors: [Tensor<B, 1>; 3],
    epilogue: Epilogue<Tensor<B, 4>>,
) -> Tensor<B, 4> {
    tensor(B::bn_normalize(primitive(x), factors.map(primitive), epilogue.map(primitive)))
}

/// `[first, second, length]` as `[second, first, length]`, for batches in parts: a differentiable primitive, since it
/// moves all activations.
pub fn swapped<B: BatchNormOps>(x: Tensor<B, 3>) -> Tensor<B, 3> {
    tensor(B::bn_swapped(primitive(x)))
}
