//! The end of a residual block under stochastic depth, as one differentiable primitive: it passes over the memory of
//! the activations once, where Burn's operations pass three times.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, Tensor, TensorMetadata};

use super::gradient::{GradientOps, register};
use super::{primitive, tensor};

/// Residual branches whose images have a factor each, `[batch]`.
pub trait BranchOps: GradientOps {
    /// `relu(branch * factors + shortcut)`; both are `[batch, channels, height, width]`.
    fn branch_added(
        branch: FloatTensor<Self>,
        factors: FloatTensor<Self>,
        shortcut: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::relu(Self::float_add(Self::branch_scaled(branch, factors), shortcut))
    }

    /// `branch * factors`.
    fn branch_scaled(branch: FloatTensor<Self>, factors: FloatTensor<Self>) -> FloatTensor<Self> {
        let [batch] = factors.shape().dims();
        Self::float_mul(branch, Self::float_reshape(factors, Shape::new([batch, 1, 1, 1])))
    }
}

#[derive(Debug)]
struct BranchBackward;

/// The parents are branch and shortcut, the saved values output and factors.
impl<B: BranchOps> Backward<B, 2> for BranchBackward {
    type State = [FloatTensor<B>; 2];

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let ([output, factors], [branch, shortcut]) = (ops.state, ops.parents);
        let gradient = B::relu_gradient(output, grads.consume::<B>(&ops.node));
        let scaled = branch.map(|node| (node, B::branch_scaled(gradient.clone(), factors)));
        for (node, gradient) in scaled.into_iter().chain(shortcut.map(|node| (node, gradient))) {
            let mut gradient = <Autodiff<B> as AutodiffBackend>::from_inner(gradient);
            gradient.node = node;
            register::<B>(grads, gradient);
        }
    }
}

impl<B: BranchOps, C: CheckpointStrategy> BranchOps for Autodiff<B, C> {
    fn branch_added(
        branch: FloatTensor<Self>,
        factors: FloatTensor<Self>,
        shortcut: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let nodes = [&branch, &shortcut].map(|parent| parent.node.clone());
        let prepared = BranchBackward.prepare::<C>(nodes).compute_bound().stateful();
        let factors = factors.primitive;
        let output = B::branch_added(branch.primitive.clone(), factors.clone(), shortcut.primitive.clone());
        let output = match prepared {
            OpsKind::Tracked(step) => step.finish([output.clone(), factors], output),
            OpsKind::UnTracked(step) => step.finish(output),
        };
        // The parents must live until this step is registered: see `batch_norm_backward.rs`.
        drop((branch, shortcut));
        output
    }
}

/// `relu(branch * factors + shortcut)` of `[batch, channels, height, width]`, with one factor, which has no gradient,
/// for each image: `[batch]`.
pub fn add_branch<B: BranchOps>(branch: Tensor<B, 4>, factors: Tensor<B, 1>, shortcut: Tensor<B, 4>) -> Tensor<B, 4> {
    tensor(B::branch_added(primitive(branch), primitive(factors), primitive(shortcut)))
}
