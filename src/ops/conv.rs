//! Convolution as one differentiable primitive: forward, weight gradient and input gradient.
//!
//! Burn derives the gradients of a convolution from other convolutions, which on a CPU costs several times the forward
//! pass. Here they are separate functions that a backend may override (see `flex` and `torch`); the default bodies
//! are Burn's own. Bias and dilation are not supported: Kiln's networks have none.

use std::any::Any;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::module::ParamId;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Slice, Tensor, TensorMetadata};
use kiln_kernels::Trim;

use super::batch_norm::BatchNormOps;
use super::epilogue::Epilogue;
use super::gradient::register;
use super::host::HostOps;
use super::precision::as_type;
use super::sliding::Sliding;
use super::trim::{cropped, padded};
use super::{primitive, tensor};

/// Is called with a parameter's gradient as soon as it is computed. Implemented in `parallel`.
pub trait GradientListener: Send + Sync {
    /// What is registered as the gradient of `parameter` in place of `gradient`, a [`FloatTensor`] of the backend that
    /// computes, in f32: that, or its sum with the gradients of earlier passes, of the same type.
    fn accumulated(&self, parameter: ParamId, gradient: Box<dyn Any>) -> Box<dyn Any>;

    /// The gradient of `parameter` is complete; `gradient` makes a [`FloatTensor`] of it, of the backend that computes,
    /// in f32.
    fn ready(&self, parameter: ParamId, gradient: &dyn Fn() -> Box<dyn Any>);

    /// What [`ConvOps::conv_weights`] made of `parameter`, a [`FloatTensor`] of the backend that computes, if anything.
    fn prepared(&self, _parameter: ParamId) -> Option<Box<dyn Any>> {
        None
    }
}

/// Burn's autodiff asks it of what a backward pass keeps.
impl Debug for dyn GradientListener {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("GradientListener")
    }
}

/// A listener for one parameter. The parameter must be used once per forward pass: its gradient is complete after that
/// use's backward step.
#[derive(Debug, Clone)]
pub struct ParameterListener {
    pub listener: Arc<dyn GradientListener>,
    pub parameter: ParamId,
}

/// The products of a convolution that a backend may compute faster.
///
/// `x` is `[batch, inputs, height, width]`, `weight` `[outputs, inputs / groups, kernel_height, kernel_width]`,
/// `gradient` (of the output) `[batch, outputs, out_height, out_width]`. The weight is that of
/// [`ConvOps::conv_weight`]; its gradient may be f32 whatever the type of `x`.
pub trait ConvOps: HostOps + BatchNormOps {
    /// Whether the outputs of convolutions have the channels of a pixel side by side. The mean over the pixels then
    /// sums in their order, and the classifier is a convolution of one pixel: on `flex` Burn's sums of neighbours round
    /// differently with each instruction set, and its products of matrices may; elsewhere they are slower.
    const CHANNELS_INNERMOST: bool = false;

    /// Whether the three products take several groups of such images; else they are called with one group only.
    fn has_groups(_x: &FloatTensor<Self>) -> bool {
        false
    }

    /// Images or kernels in the memory layout for which this backend's convolutions are fastest; shape and values do
    /// not change. `innermost` asks for channels innermost (NHWC) on a CPU: faster for large maps, for
    /// Winograd's algorithm, and in evaluation.
    fn arranged(images: FloatTensor<Self>, _innermost: bool) -> FloatTensor<Self> {
        images
    }

    /// The weight in the type and the memory layout of all three products with `x`, converted once.
    fn conv_weight(weight: FloatTensor<Self>, x: &FloatTensor<Self>, _sliding: Sliding) -> FloatTensor<Self> {
        as_type::<Self>(weight, x.dtype().into())
    }

    /// [`ConvOps::conv_weight`] of several weights of f32 at once, for images of `dtype`, where that takes fewer kernels
    /// of the device; others do not ask for them.
    fn conv_weights(
        _weights: impl FnOnce() -> Vec<FloatTensor<Self>>,
        _dtype: DType,
    ) -> Option<Vec<FloatTensor<Self>>> {
        None
    }

    /// The output, `[batch, outputs, out_height, out_width]`.
    fn conv_forward([x, weight]: [FloatTensor<Self>; 2], sliding: Sliding) -> FloatTensor<Self> {
        Self::conv2d(x, weight, None, sliding.options())
    }

    fn conv_weight_gradient([x, weight, gradient]: [FloatTensor<Self>; 3], sliding: Sliding) -> FloatTensor<Self> {
        Self::conv2d_weight_backward(x, weight, gradient, sliding.options())
    }

    fn conv_input_gradient([x, weight, gradient]: [FloatTensor<Self>; 3], sliding: Sliding) -> FloatTensor<Self> {
        Self::conv2d_x_backward(x, weight, gradient, sliding.options())
    }

    /// The part of the kernels that lies on the image.
    fn conv_trimmed(weight: FloatTensor<Self>, trim: &Trim) -> FloatTensor<Self> {
        cropped::<Self>(weight, trim)
    }

    /// The gradient of whole kernels from that of their trimmed part: zero elsewhere.
    fn conv_untrimmed(gradient: FloatTensor<Self>, trim: &Trim) -> FloatTensor<Self> {
        padded::<Self>(gradient, trim)
    }

    /// The convolution with a trimmed kernel. On an autodiff backend, the backward pass calls the listener with the
    /// gradient of the weight.
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        sliding: Sliding,
        _listener: Option<ParameterListener>,
    ) -> FloatTensor<Self> {
        let (weight, sliding, _) = trimmed::<Self>(&x, weight, sliding);
        let weight = Self::conv_weight(weight, &x, sliding);
        by_group::<Self, 2>([x, weight], 1, sliding, Self::conv_forward)
    }

    /// The convolution with a prepared kernel, then [`BatchNormOps::bn_normalize`]: the same bits as one after the
    /// other.
    fn convolution_normalized(
        x: FloatTensor<Self>,
        kernel: PreparedKernel<Self>,
        factors: [FloatTensor<Self>; 3],
        epilogue: Epilogue<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        Self::bn_normalize(Self::convolution(x, kernel.weight, kernel.sliding, None), factors, epilogue)
    }
}

/// A kernel for images of one height and width, trimmed and in the memory layout of its convolution.
#[derive(Debug, Clone)]
pub struct PreparedKernel<B: Backend> {
    pub(super) weight: FloatTensor<B>,
    pub(super) sliding: Sliding,
}

impl<B: ConvOps> PreparedKernel<B> {
    /// For images of the size and the layout of `x`.
    pub fn new(weight: Tensor<B, 4>, x: &Tensor<B, 4>, sliding: Sliding) -> Self {
        let x = primitive(x.clone());
        let (weight, sliding, _) = trimmed::<B>(&x, primitive(weight), sliding);
        Self { weight: B::conv_weight(weight, &x, sliding), sliding }
    }
}

/// The axis along which groups divide each operand: images, kernels, the gradient of the output.
const AXES: [usize; 3] = [1, 0, 1];

/// One of the three products for any number of groups ("Aggregated Residual Transformations for Deep Neural Networks",
/// Xie et al., 2017): group by group, where the backend has no kernel for all at once. The results are joined along
/// `axis`.
pub(super) fn by_group<B: ConvOps, const N: usize>(
    operands: [FloatTensor<B>; N],
    axis: usize,
    sliding: Sliding,
    product: impl Fn([FloatTensor<B>; N], Sliding) -> FloatTensor<B>,
) -> FloatTensor<B> {
    if sliding.groups == 1 || B::has_groups(&operands[0]) {
        return product(operands, sliding);
    }
    let part = |operand: usize, group: usize| {
        let (operand, axis) = (&operands[operand], AXES[operand]);
        let mut ranges: [_; 4] = operand.shape().dims().map(|size: usize| 0..size);
        let size = ranges[axis].end / sliding.groups;
        ranges[axis] = group * size..(group + 1) * size;
        B::float_slice(operand.clone(), &ranges.map(Slice::from))
    };
    let of_one = Sliding { groups: 1, ..sliding };
    let of_group = |group: usize| product(std::array::from_fn(|operand| part(operand, group)), of_one);
    B::float_cat((0..sliding.groups).map(of_group).collect(), axis)
}

/// The weight trimmed for images of the shape of `x`, how it moves over them, and what was trimmed.
fn trimmed<B: ConvOps>(
    x: &FloatTensor<B>,
    weight: FloatTensor<B>,
    sliding: Sliding,
) -> (FloatTensor<B>, Sliding, Option<Trim>) {
    match Trim::of(x.shape().dims(), weight.shape().dims(), sliding.stride, sliding.padding) {
        Some(trim) => (B::conv_trimmed(weight, &trim), Sliding { padding: 0, ..sliding }, Some(trim)),
        None => (weight, sliding, None),
    }
}

#[derive(Debug)]
struct ConvBackward;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    /// The type of the parameter, and so of its gradient.
    dtype: FloatDType,
    sliding: Sliding,
    trim: Option<Trim>,
    listener: Option<ParameterListener>,
}

impl<B: ConvOps> Backward<B, 2> for ConvBackward {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, weight_node] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        let Saved { x, weight, dtype, sliding, trim, listener } = ops.state;
        if let Some(node) = weight_node {
            let operands = [&x, &weight, &gradient].map(Clone::clone);
            let found = by_group::<B, 3>(operands, 0, sliding, B::conv_weight_gradient);
            let mut found = as_type::<B>(trim.iter().fold(found, B::conv_untrimmed), dtype);
            if let Some(ParameterListener { listener, parameter }) = listener {
                let sum = listener.accumulated(parameter, Box::new(found));
                found = *sum.downcast().expect("a sum is of the type of its summands");
                listener.ready(parameter, &|| Box::new(found.clone()));
            }
            grads.register::<B>(node.id, found);
        }
        // The first layer's input is data and needs no gradient.
        if let Some(node) = x_node {
            let found = by_group::<B, 3>([x, weight, gradient], 1, sliding, B::conv_input_gradient);
            let mut found = <Autodiff<B> as AutodiffBackend>::from_inner(found);
            found.node = node;
            register::<B>(grads, found);
        }
    }
}

impl<B: ConvOps, C: CheckpointStrategy> ConvOps for Autodiff<B, C> {
    const CHANNELS_INNERMOST: bool = B::CHANNELS_INNERMOST;

    fn arranged(images: FloatTensor<Self>, innermost: bool) -> FloatTensor<Self> {
        Self::from_inner(B::arranged(images.primitive, innermost))
    }

    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        sliding: Sliding,
        listener: Option<ParameterListener>,
    ) -> FloatTensor<Self> {
        let prepared = ConvBackward.prepare::<C>([x.node.clone(), weight.node.clone()]).compute_bound().stateful();
        let (image, dtype) = (x.primitive.clone(), weight.primitive.dtype().into());
        let (kernel, sliding, trim) = trimmed::<B>(&image, weight.primitive.clone(), sliding);
        let made = listener.as_ref().filter(|_| trim.is_none());
        let made = made.and_then(|it| it.listener.prepared(it.parameter)?.downcast::<FloatTensor<B>>().ok());
        let made = made.filter(|made| made.dtype() == image.dtype());
        let kernel = made.map_or_else(|| B::conv_weight(kernel, &image, sliding), |made| *made);
        let output = by_group::<B, 2>([image.clone(), kernel.clone()], 1, sliding, B::conv_forward);
        let output = match prepared {
            OpsKind::Tracked(step) => {
                step.finish(Saved { x: image, weight: kernel, dtype, sliding, trim, listener }, output)
            }
            OpsKind::UnTracked(step) => step.finish(output),
        };
        // The parents must live until this step is registered: see `batch_norm_backward.rs`.
        drop((x, weight));
        output
    }
}

/// The images `[batch, channels, height, width]` in the backend's fastest layout: see [`ConvOps::arranged`]. No
/// gradient passes through.
pub fn arranged<B: ConvOps>(images: Tensor<B, 4>, innermost: bool) -> Tensor<B, 4> {
    tensor(B::arranged(primitive(images), innermost))
}

/// The convolution of `x` `[batch, inputs, height, width]` with `weight` `[outputs, inputs / groups, kernel, kernel]`:
/// `[batch, outputs, out_height, out_width]`, where `out = (size + 2 padding - kernel) / stride + 1`, rounded down. The
/// backward pass calls the listener with the gradient of the weight.
pub fn conv2d<B: ConvOps>(
    x: Tensor<B, 4>,
    weight: Tensor<B, 4>,
    sliding: Sliding,
    listener: Option<ParameterListener>,
) -> Tensor<B, 4> {
    tensor(B::convolution(primitive(x), primitive(weight), sliding, listener))
}

/// [`conv2d`], then [`super::normalize`].
pub fn conv2d_normalized<B: ConvOps>(
    x: Tensor<B, 4>,
    kernel: PreparedKernel<B>,
    factors: [Tensor<B, 1>; 3],
    epilogue: Epilogue<Tensor<B, 4>>,
) -> Tensor<B, 4> {
    tensor(B::convolution_normalized(primitive(x), kernel, factors.map(primitive), epilogue.map(primitive)))
}
