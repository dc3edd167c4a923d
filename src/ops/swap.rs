//! The exchange of a tensor's first two axes, for batches in parts: a differentiable primitive, since it moves all
//! activations.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::batch_norm::BatchNormOps;
use super::{primitive, tensor};

#[derive(Debug)]
struct SwapBackward;

impl<B: BatchNormOps> Backward<B, 1> for SwapBackward {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, B::bn_swapped);
    }
}

/// [`BatchNormOps::bn_swapped`] on the graph.
pub(super) fn tracked<B: BatchNormOps, C: CheckpointStrategy>(
    x: FloatTensor<Autodiff<B, C>>,
) -> FloatTensor<Autodiff<B, C>> {
    let prepared = SwapBackward.prepare::<C>([x.node.clone()]).compute_bound().stateful();
    let output = B::bn_swapped(x.primitive.clone());
    let output = match prepared {
        OpsKind::Tracked(step) => step.finish((), output),
        OpsKind::UnTracked(step) => step.finish(output),
    };
    // The parent must live until this step is registered: see `batch_norm_backward.rs`.
    drop(x);
    output
}

/// `[first, second, length]` as `[second, first, length]`.
pub fn swapped<B: BatchNormOps>(x: Tensor<B, 3>) -> Tensor<B, 3> {
    tensor(B::bn_swapped(primitive(x)))
}
