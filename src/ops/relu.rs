//! The rectifier as a primitive whose gradient a backend may compute from the output in one pass.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorPrimitive};

/// The rectifier and its gradient.
pub trait ReluOps: Backend {
    /// `max(x, 0)`.
    fn relu_forward(x: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::relu(x)
    }

    /// `gradient` where the output is positive, zero elsewhere.
    fn relu_gradient(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::relu_backward(output, gradient)
    }
}

#[derive(Debug)]
struct ReluBackward;

impl<B: ReluOps> Backward<B, 1> for ReluBackward {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let output = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |gradient| B::relu_gradient(output, gradient));
    }
}

impl<B: ReluOps, C: CheckpointStrategy> ReluOps for Autodiff<B, C> {
    fn relu_forward(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = ReluBackward.prepare::<C>([x.node.clone()]).compute_bound().stateful();
        // The input is given away: where nobody else holds it, as after batch-norm, a backend works in place.
        let output = B::relu_forward(x.primitive);
        let output = match prepared {
            OpsKind::Tracked(step) => step.finish(output.clone(), output),
            OpsKind::UnTracked(step) => step.finish(output),
        };
        // The parent's reference count must outlive the registration above: see `batch_norm`.
        drop(x.node);
        output
    }
}

/// `max(x, 0)`, element by element.
pub fn relu<B: ReluOps, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(B::relu_forward(x.into_primitive().tensor())))
}
