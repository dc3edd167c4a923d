//! The max-pooling of a ResNet's stem, 3x3 with stride 2 and padding 1, as one differentiable primitive.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};

use super::{primitive, tensor};

/// Width and height of a window.
pub(super) const SIDE: usize = 3;
/// Pixels from one window to the next.
pub(super) const STRIDE: usize = 2;
/// Padding on each side of the image.
pub(super) const PADDING: usize = 1;

/// Max-pooling and its gradient.
pub trait PoolOps: Backend {
    /// The largest value of each window, `[batch, channels, out_height, out_width]`, and their indices if
    /// [`PoolOps::pool_gradient`] needs them.
    fn pool_forward(x: FloatTensor<Self>) -> (FloatTensor<Self>, Option<IntTensor<Self>>) {
        let done = Self::max_pool2d_with_indices(x, [SIDE; 2], [STRIDE; 2], [PADDING; 2], [1; 2], false);
        (done.output, Some(done.indices))
    }

    /// The gradient of the input: that of a window goes to the first of its largest values.
    fn pool_gradient(gradient: FloatTensor<Self>, pooled: Pooled<Self>) -> FloatTensor<Self> {
        let places = pooled.places.expect("`pool_forward` says where they are");
        let (sides, strides, paddings) = ([SIDE; 2], [STRIDE; 2], [PADDING; 2]);
        let x = pooled.x;
        Self::max_pool2d_with_indices_backward(x, sides, strides, paddings, [1; 2], false, gradient, places).x_grad
    }
}

/// Values saved for the backward pass.
#[derive(Debug, Clone)]
pub struct Pooled<B: Backend> {
    pub x: FloatTensor<B>,
    pub output: FloatTensor<B>,
    /// Indices of its values in the input, if the backend uses them.
    pub places: Option<IntTensor<B>>,
}

#[derive(Debug)]
struct PoolBackward;

impl<B: PoolOps> Backward<B, 1> for PoolBackward {
    type State = Pooled<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let pooled = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |gradient| B::pool_gradient(gradient, pooled));
    }
}

impl<B: PoolOps, C: CheckpointStrategy> PoolOps for Autodiff<B, C> {
    fn pool_forward(x: FloatTensor<Self>) -> (FloatTensor<Self>, Option<IntTensor<Self>>) {
        let prepared = PoolBackward.prepare::<C>([x.node.clone()]).compute_bound().stateful();
        let inner = x.primitive.clone();
        let (output, places) = B::pool_forward(inner.clone());
        let output = match prepared {
            OpsKind::Tracked(step) => step.finish(Pooled { x: inner, output: output.clone(), places }, output),
            OpsKind::UnTracked(step) => step.finish(output),
        };
        // The parent must live until this step is registered: see `batch_norm_backward.rs`.
        drop(x);
        (output, None)
    }
}

/// 3x3 max-pooling with stride 2 and padding 1 of `[batch, channels, height, width]`.
pub fn max_pool<B: PoolOps>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    tensor(B::pool_forward(primitive(x)).0)
}
