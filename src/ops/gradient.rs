//! What gradients go through on their way between layers: the rectifier, and sums where several steps use one tensor.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

/// Both, which a backend may do in one pass over memory, whatever its layout.
pub trait GradientOps: Backend {
    /// `gradient` where the output is positive, zero elsewhere.
    fn rectified(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::relu_backward(output, gradient)
    }

    /// The sum of two gradients of one tensor.
    fn sum(one: FloatTensor<Self>, other: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_add(one, other)
    }
}

impl<B: Backend, C: CheckpointStrategy> GradientOps for Autodiff<B, C> {}

/// As [`Gradients::register`], with the backend's own sum: `gradient` is a tensor of the node that it is for.
pub(super) fn register<B: GradientOps>(grads: &mut Gradients, gradient: FloatTensor<Autodiff<B>>) {
    let (id, other) = (gradient.node.id, grads.remove::<B>(&gradient));
    let gradient = gradient.primitive;
    grads.register::<B>(id, other.into_iter().fold(gradient, B::sum));
}
