//! Batch normalisation as one differentiable primitive, synchronised over replicas on request.
//!
//! Ioffe and Szegedy 2015; the gradient is the closed form, not the graph of the composed operations. Everything runs
//! on the view `[batch * channels, height * width]`, where per-channel values are one number per row: CPU backends have
//! fast loops for that, and no axis needs to be swapped. Activations may be of a half type; statistics, scale and shift
//! are f32 on the device and f64 between replicas, and so is all arithmetic.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorData, TensorMetadata, TensorPrimitive};

use super::precision::as_type;
use super::statistics::{Moments, Synchronized};
use super::{reading, writing};

/// What training-mode batch-norm returns, as backend primitives.
#[derive(Debug, Clone)]
pub struct Normalized<B: Backend> {
    /// The output, as the input `[batch, channels, height, width]`.
    pub output: FloatTensor<B>,
    /// Mean over the (global) batch, `[channels]`.
    pub mean: FloatTensor<B>,
    /// Sum of squared deviations over the (global) batch, `[channels]`.
    pub m2: FloatTensor<B>,
    /// `1 / sqrt(biased variance + eps)`, `[channels]`.
    pub inv_std: FloatTensor<B>,
    /// Values per channel in the (global) batch.
    pub count: f64,
}

/// The steps of batch-norm a backend may do faster. All take `[batch, channels, height, width]` and `[channels]`.
pub trait BatchNormOps: Backend {
    /// Mean and sum of squared deviations from it, per channel, in two passes.
    fn bn_moments(x: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let view = View::of(&x.shape());
        let x = view.rows::<Self>(full::<Self>(x));
        let mean = Self::float_div_scalar(view.channel_sum::<Self>(x.clone()), view.count().into());
        let deviation = Self::float_sub(x, view.spread::<Self>(mean.clone()));
        (mean, view.channel_sum::<Self>(Self::float_mul(deviation.clone(), deviation)))
    }

    /// `(x - mean) * scale + bias`.
    fn bn_normalize(
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let (shape, dtype) = (x.shape(), x.dtype());
        let view = View::of(&shape);
        let centred = Self::float_sub(view.rows::<Self>(full::<Self>(x)), view.spread::<Self>(mean));
        let scaled = Self::float_mul(centred, view.spread::<Self>(scale));
        let output = Self::float_reshape(Self::float_add(scaled, view.spread::<Self>(bias)), shape);
        as_type::<Self>(output, dtype.into())
    }

    /// `sum(gradient)` and `sum(gradient * (x - mean))` per channel.
    fn bn_gradient_sums(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let view = View::of(&x.shape());
        let gradient = view.rows::<Self>(full::<Self>(gradient));
        let centred = Self::float_sub(view.rows::<Self>(full::<Self>(x)), view.spread::<Self>(mean));
        let product = Self::float_mul(gradient.clone(), centred);
        (view.channel_sum::<Self>(gradient), view.channel_sum::<Self>(product))
    }

    /// `gradient * k - (x - mean) * q - r`, the gradient of the input.
    fn bn_input_gradient(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        [k, q, r]: [FloatTensor<Self>; 3],
    ) -> FloatTensor<Self> {
        let (shape, dtype) = (x.shape(), x.dtype());
        let view = View::of(&shape);
        let centred = Self::float_sub(view.rows::<Self>(full::<Self>(x)), view.spread::<Self>(mean));
        let direct = Self::float_mul(view.rows::<Self>(full::<Self>(gradient)), view.spread::<Self>(k));
        let indirect = Self::float_add(Self::float_mul(centred, view.spread::<Self>(q)), view.spread::<Self>(r));
        as_type::<Self>(Self::float_reshape(Self::float_sub(direct, indirect), shape), dtype.into())
    }

    /// Gradients of input, weight and bias where no other replica's samples count.
    ///
    /// `d/dx = k (g - mean(g) - x_hat mean(g x_hat))` with `k = weight * inv_std`, means over the batch.
    fn bn_local_gradients(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        [mean, inv_std]: [FloatTensor<Self>; 2],
        count: f64,
    ) -> [FloatTensor<Self>; 3] {
        let (bias_gradient, weighted) = Self::bn_gradient_sums(gradient.clone(), x.clone(), mean.clone());
        let weight_gradient = Self::float_mul(weighted, inv_std.clone());
        let totals = [bias_gradient.clone(), weight_gradient.clone()];
        let factors = input_factors::<Self>(weight, inv_std, totals, 1.0 / count);
        [Self::bn_input_gradient(gradient, x, mean, factors), weight_gradient, bias_gradient]
    }

    /// Training-mode batch-norm, over the group's batch when `sync` is given.
    fn bn_train(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        sync: Option<&Synchronized>,
    ) -> Normalized<Self> {
        let mut count = View::of(&x.shape()).count();
        let (mut mean, mut m2) = Self::bn_moments(x.clone());
        if let Some(sync) = sync {
            let device = Self::float_device(&x);
            let total = sync.moments(Moments { count, mean: read::<Self>(mean), m2: read::<Self>(m2) });
            count = total.count;
            mean = write::<Self>(&total.mean, &device);
            m2 = write::<Self>(&total.m2, &device);
        }
        let variance = Self::float_div_scalar(m2.clone(), count.into());
        let inv_std = Self::float_recip(Self::float_sqrt(Self::float_add_scalar(variance, epsilon.into())));
        let scale = Self::float_mul(weight, inv_std.clone());
        let output = Self::bn_normalize(x, mean.clone(), scale, bias);
        Normalized { output, mean, m2, inv_std, count }
    }
}

/// The tensor in f32, as statistics want it.
fn full<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    as_type::<B>(x, FloatDType::F32)
}

/// `[batch, channels, height, width]` seen as `[batch * channels, height * width]`.
#[derive(Clone, Copy)]
struct View {
    batch: usize,
    channels: usize,
    area: usize,
}

impl View {
    fn of(shape: &Shape) -> Self {
        let (batch, channels) = (shape[0], shape[1]);
        Self { batch, channels, area: shape.num_elements() / (batch * channels) }
    }

    /// Values per channel.
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
    fn spread<B: Backend>(self, values: FloatTensor<B>) -> FloatTensor<B> {
        let row = B::float_reshape(values, Shape::new([1, self.channels]));
        B::float_reshape(B::float_repeat_dim(row, 0, self.batch), Shape::new([self.batch * self.channels, 1]))
    }
}

/// Device to host, as f64. Blocks until the device is done.
fn read<B: Backend>(values: FloatTensor<B>) -> Vec<f64> {
    let _copy = reading(values.shape().num_elements(), values.dtype());
    let data = burn::tensor::read_sync(B::float_into_data(values)).expect("a device that computes can be read");
    data.iter::<f64>().collect()
}

/// Host to device, rounded to f32.
fn write<B: Backend>(values: &[f64], device: &B::Device) -> FloatTensor<B> {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let length = values.len();
    let _copy = writing(length, DType::F32);
    B::float_from_data(TensorData::new(values, [length]), device)
}

#[derive(Debug)]
struct BatchNormBackward;

/// What the backward pass needs of the forward pass.
#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    mean: FloatTensor<B>,
    inv_std: FloatTensor<B>,
    count: f64,
    sync: Option<Synchronized>,
}

impl<B: BatchNormOps> Backward<B, 3> for BatchNormBackward {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        let Saved { x, weight, mean, inv_std, count, sync } = ops.state;
        let [x_gradient, weight_gradient, bias_gradient] = match sync {
            None => B::bn_local_gradients(gradient, x, weight, [mean, inv_std], count),
            Some(sync) => synchronized_gradients::<B>(gradient, x, weight, [mean, inv_std], count, &sync),
        };
        let gradients = [(x_node, x_gradient), (weight_node, weight_gradient), (bias_node, bias_gradient)];
        for (node, gradient) in gradients.into_iter().filter_map(|(node, gradient)| Some((node?, gradient))) {
            grads.register::<B>(node.id, gradient);
        }
    }
}

/// As [`BatchNormOps::bn_local_gradients`], with the means over the whole group's batch. The gradients of weight and
/// bias stay this replica's share: they are reduced with all others.
///
/// Every replica takes part, also where no gradient of the input is asked for: a missing share would stall the rest.
fn synchronized_gradients<B: BatchNormOps>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    [mean, inv_std]: [FloatTensor<B>; 2],
    count: f64,
    sync: &Synchronized,
) -> [FloatTensor<B>; 3] {
    let device = B::float_device(&x);
    let (bias_gradient, weighted) = B::bn_gradient_sums(gradient.clone(), x.clone(), mean.clone());
    let weight_gradient = B::float_mul(weighted, inv_std.clone());
    let channels = bias_gradient.shape()[0];
    let mut values = read::<B>(bias_gradient.clone());
    values.extend(read::<B>(weight_gradient.clone()));
    let totals = sync.sums(values);
    let totals = [write::<B>(&totals[..channels], &device), write::<B>(&totals[channels..], &device)];
    let share = if sync.present { 1.0 / count } else { 0.0 };
    let factors = input_factors::<B>(weight, inv_std, totals, share);
    [B::bn_input_gradient(gradient, x, mean, factors), weight_gradient, bias_gradient]
}

/// The factors `k`, `q`, `r` of [`BatchNormOps::bn_input_gradient`]; `share` is one over the number of values.
fn input_factors<B: Backend>(
    weight: FloatTensor<B>,
    inv_std: FloatTensor<B>,
    [sum, weighted]: [FloatTensor<B>; 2],
    share: f64,
) -> [FloatTensor<B>; 3] {
    let k = B::float_mul(weight, inv_std.clone());
    let q = B::float_mul(B::float_mul(k.clone(), inv_std), B::float_mul_scalar(weighted, share.into()));
    let r = B::float_mul(k.clone(), B::float_mul_scalar(sum, share.into()));
    [k, q, r]
}

impl<B: BatchNormOps, C: CheckpointStrategy> BatchNormOps for Autodiff<B, C> {
    fn bn_train(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        sync: Option<&Synchronized>,
    ) -> Normalized<Self> {
        let inputs = (x.primitive.clone(), weight.primitive.clone(), bias.primitive.clone());
        let prepared = BatchNormBackward
            .prepare::<C>([x.node.clone(), weight.node.clone(), bias.node.clone()])
            .compute_bound()
            .stateful();
        let done = B::bn_train(inputs.0.clone(), inputs.1.clone(), inputs.2, epsilon, sync);
        let output = match prepared {
            OpsKind::Tracked(step) => {
                let saved = Saved {
                    x: inputs.0,
                    weight: inputs.1,
                    mean: done.mean.clone(),
                    inv_std: done.inv_std.clone(),
                    count: done.count,
                    sync: sync.cloned(),
                };
                step.finish(saved, done.output)
            }
            OpsKind::UnTracked(step) => step.finish(done.output),
        };
        // The parents' reference counts must outlive the registration above, or another thread's clean-up of the
        // autodiff graph may take this step away (tracel-ai/burn #5573).
        drop((x, weight, bias));
        Normalized {
            output,
            mean: Self::from_inner(done.mean),
            m2: Self::from_inner(done.m2),
            inv_std: Self::from_inner(done.inv_std),
            count: done.count,
        }
    }
}

/// The result of [`batch_norm`].
#[derive(Debug, Clone)]
pub struct BatchNormOutput<B: Backend> {
    /// Normalised activations `[batch, channels, height, width]`.
    pub output: Tensor<B, 4>,
    /// Mean over the (global) batch, `[channels]`, untracked.
    pub mean: Tensor<B, 1>,
    /// Unbiased variance over the (global) batch, `[channels]`, untracked. With a single value per channel, zero.
    pub variance: Tensor<B, 1>,
}

/// Training-mode batch-norm with the statistics of the batch, or of the whole group's batch when `sync` is given.
///
/// `x` is `[batch, channels, height, width]`, `weight` and `bias` are `[channels]`.
pub fn batch_norm<B: BatchNormOps>(
    x: Tensor<B, 4>,
    weight: Tensor<B, 1>,
    bias: Tensor<B, 1>,
    epsilon: f64,
    sync: Option<&Synchronized>,
) -> BatchNormOutput<B> {
    let float = |tensor| Tensor::from_primitive(TensorPrimitive::Float(tensor));
    let [x, weight, bias] = [x.into_primitive(), weight.into_primitive(), bias.into_primitive()].map(|p| p.tensor());
    let done = B::bn_train(x, weight, bias, epsilon, sync);
    let variance = B::float_div_scalar(done.m2, (done.count - 1.0).max(1.0).into());
    BatchNormOutput {
        output: Tensor::from_primitive(TensorPrimitive::Float(done.output)),
        mean: float(done.mean),
        variance: float(variance),
    }
}

/// Batch-norm with given statistics, as at evaluation: `(x - mean) / sqrt(variance + eps) * weight + bias`.
pub fn batch_norm_inference<B: BatchNormOps>(
    x: Tensor<B, 4>,
    [mean, variance]: [Tensor<B, 1>; 2],
    [weight, bias]: [Tensor<B, 1>; 2],
    epsilon: f64,
) -> Tensor<B, 4> {
    let scale = weight * (variance + epsilon).sqrt().recip();
    let primitives = [x.into_primitive(), mean.into_primitive(), scale.into_primitive(), bias.into_primitive()];
    let [x, mean, scale, bias] = primitives.map(|p| p.tensor());
    Tensor::from_primitive(TensorPrimitive::Float(B::bn_normalize(x, mean, scale, bias)))
}
