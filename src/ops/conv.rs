//! Convolution as one differentiable primitive with the three products a training step needs.
//!
//! Burn derives the gradients of a convolution from other convolutions, which on a CPU costs several times the forward
//! pass. Here forward, weight gradient and input gradient are separate steps that a backend may do faster (see
//! `flex` and `winograd`); the default bodies are Burn's own. No bias, no dilation, no groups: Kiln's networks have none.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Tensor, TensorMetadata, TensorPrimitive};

use super::gradient::{GradientOps, register};
use super::host::HostOps;
use super::listener::Listened;
use super::precision::as_type;
use super::sliding::Sliding;
use super::trim::Trim;

/// The products of a convolution that a backend may compute faster.
///
/// `x` is `[batch, inputs, height, width]`, `weight` `[outputs, inputs, kernel_height, kernel_width]`, `gradient` (of the
/// output) `[batch, outputs, out_height, out_width]`.
pub trait ConvOps: HostOps + GradientOps {
    /// Images, or kernels, in the memory layout that this backend's convolutions are fastest with. Shape and values stay.
    /// `innermost` says that on a CPU those with the channels innermost are: of large maps, for [`super::winograd`], and at
    /// evaluation.
    fn arranged(images: FloatTensor<Self>, _innermost: bool) -> FloatTensor<Self> {
        images
    }

    /// The weight in the memory layout that all three products with `x` want; made once for all of them.
    fn conv_weight(weight: FloatTensor<Self>, _x: &FloatTensor<Self>, _sliding: Sliding) -> FloatTensor<Self> {
        weight
    }

    /// The output, `[batch, outputs, out_height, out_width]`.
    fn conv_forward(x: FloatTensor<Self>, weight: FloatTensor<Self>, sliding: Sliding) -> FloatTensor<Self> {
        Self::conv2d(x, weight, None, sliding.options())
    }

    /// The gradient of the weight, in its shape.
    fn conv_weight_gradient(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        sliding: Sliding,
    ) -> FloatTensor<Self> {
        Self::conv2d_weight_backward(x, weight, gradient, sliding.options())
    }

    /// The gradient of the input, in its shape.
    fn conv_input_gradient(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        sliding: Sliding,
    ) -> FloatTensor<Self> {
        Self::conv2d_x_backward(x, weight, gradient, sliding.options())
    }

    /// What of the kernels counts.
    fn conv_trimmed(weight: FloatTensor<Self>, trim: &Trim) -> FloatTensor<Self> {
        trim.slice::<Self>(weight)
    }

    /// The gradient of whole kernels from that of what counts of them.
    fn conv_untrimmed(gradient: FloatTensor<Self>, trim: &Trim) -> FloatTensor<Self> {
        trim.grow::<Self>(gradient)
    }

    /// The whole of it, with as little of the kernel as counts. Where there is a backward pass, who listens hears of the
    /// weight's gradient.
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        sliding: Sliding,
        _listened: Option<Listened>,
    ) -> FloatTensor<Self> {
        let (weight, sliding, _) = trimmed::<Self>(&x, weight, sliding);
        Self::conv_forward(x, weight, sliding)
    }
}

/// The weight that counts for images like `x`, how it moves there, and what was left out.
fn trimmed<B: ConvOps>(
    x: &FloatTensor<B>,
    weight: FloatTensor<B>,
    sliding: Sliding,
) -> (FloatTensor<B>, Sliding, Option<Trim>) {
    match Trim::of(&x.shape(), &weight.shape(), sliding) {
        Some(trim) => (B::conv_trimmed(weight, &trim), Sliding { padding: 0, ..sliding }, Some(trim)),
        None => (weight, sliding, None),
    }
}

#[derive(Debug)]
struct ConvBackward;

/// What the backward pass needs of the forward pass.
#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    sliding: Sliding,
    trim: Option<Trim>,
    listened: Option<Listened>,
}

impl<B: ConvOps> Backward<B, 2> for ConvBackward {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let [x_node, weight_node] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        let Saved { x, weight, sliding, trim, listened } = ops.state;
        if let Some(node) = weight_node {
            let found = B::conv_weight_gradient(x.clone(), weight.clone(), gradient.clone(), sliding);
            let found = trim.iter().fold(found, B::conv_untrimmed);
            if let Some(Listened { listener, parameter }) = listened {
                let append = |values: &mut Vec<f32>| B::append_to(as_type::<B>(found.clone(), FloatDType::F32), values);
                listener.ready(parameter, &append);
            }
            grads.register::<B>(node.id, found);
        }
        // The first layer's input is data: no gradient is asked for, and none is computed.
        if let Some(node) = x_node {
            let found = B::conv_input_gradient(x, weight, gradient, sliding);
            let mut found = <Autodiff<B> as AutodiffBackend>::from_inner(found);
            found.node = node;
            register::<B>(grads, found);
        }
    }
}

impl<B: ConvOps, C: CheckpointStrategy> ConvOps for Autodiff<B, C> {
    fn arranged(images: FloatTensor<Self>, innermost: bool) -> FloatTensor<Self> {
        Self::from_inner(B::arranged(images.primitive, innermost))
    }

    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        sliding: Sliding,
        listened: Option<Listened>,
    ) -> FloatTensor<Self> {
        let prepared = ConvBackward.prepare::<C>([x.node.clone(), weight.node.clone()]).compute_bound().stateful();
        let image = x.primitive.clone();
        let (kernel, sliding, trim) = trimmed::<B>(&image, weight.primitive.clone(), sliding);
        let kernel = B::conv_weight(kernel, &image, sliding);
        let output = B::conv_forward(image.clone(), kernel.clone(), sliding);
        let output = match prepared {
            OpsKind::Tracked(step) => step.finish(Saved { x: image, weight: kernel, sliding, trim, listened }, output),
            OpsKind::UnTracked(step) => step.finish(output),
        };
        // The parents' reference counts must outlive the registration above: see `batch_norm`.
        drop((x, weight));
        output
    }
}

/// The images `[batch, channels, height, width]` as the backend likes them best: see [`ConvOps::arranged`]. They are
/// data: no gradient passes through.
pub fn arranged<B: ConvOps>(images: Tensor<B, 4>, innermost: bool) -> Tensor<B, 4> {
    let images = images.into_primitive().tensor();
    Tensor::from_primitive(TensorPrimitive::Float(B::arranged(images, innermost)))
}

/// The convolution of `x` `[batch, inputs, height, width]` with `weight` `[outputs, inputs, kernel, kernel]`:
/// `[batch, outputs, out_height, out_width]`, where `out = (size + 2 padding - kernel) / stride + 1`, rounded down. Who
/// listens hears of the weight's gradient.
pub fn conv2d<B: ConvOps>(
    x: Tensor<B, 4>,
    weight: Tensor<B, 4>,
    sliding: Sliding,
    listened: Option<Listened>,
) -> Tensor<B, 4> {
    let [x, weight] = [x.into_primitive(), weight.into_primitive()].map(|primitive| primitive.tensor());
    Tensor::from_primitive(TensorPrimitive::Float(B::convolution(x, weight, sliding, listened)))
}
