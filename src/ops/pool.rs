//! Max-pooling as the stem of a residual network has it, 3x3 with stride 2 and padding 1, as one differentiable primitive.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{Tensor, TensorPrimitive};

/// Pixels on a side of what is pooled.
pub(super) const SIDE: usize = 3;
/// Pixels from one pool to the next.
pub(super) const STRIDE: usize = 2;
/// Pixels that the first pool reaches over the image.
pub(super) const PADDING: usize = 1;

/// Max-pooling and its gradient.
pub trait PoolOps: Backend {
    /// The largest values, and where they are if [`PoolOps::pool_gradient`] asks for that.
    fn pool_forward(x: FloatTensor<Self>) -> (FloatTensor<Self>, Option<IntTensor<Self>>) {
        let done = Self::max_pool2d_with_indices(x, [SIDE; 2], [STRIDE; 2], [PADDING; 2], [1; 2], false);
        (done.output, Some(done.indices))
    }

    /// The gradient of the input: each pool's goes to the first of its largest values.
    fn pool_gradient(gradient: FloatTensor<Self>, pooled: Pooled<Self>) -> FloatTensor<Self> {
        let places = pooled.places.expect("`pool_forward` says where they are");
        let (sides, strides, paddings) = ([SIDE; 2], [STRIDE; 2], [PADDING; 2]);
        let x = pooled.x;
        Self::max_pool2d_with_indices_backward(x, sides, strides, paddings, [1; 2], false, gradient, places).x_grad
    }
}

/// What the backward pass needs of the forward pass.
#[derive(Debug, Clone)]
pub struct Pooled<B: Backend> {
    /// The input.
    pub x: FloatTensor<B>,
    /// The output.
    pub output: FloatTensor<B>,
    /// Where its values are.
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
        // The parent's reference count must outlive the registration above: see `batch_norm`.
        drop(x);
        (output, None)
    }
}

/// The largest value of each 3x3 pixels, every second one, of `[batch, channels, height, width]`.
pub fn max_pool<B: PoolOps>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    Tensor::from_primitive(TensorPrimitive::Float(B::pool_forward(x.into_primitive().tensor()).0))
}
