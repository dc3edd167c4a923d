//! Gradients between layers: through ReLU, and summed if several operations use one tensor.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

/// Operations on gradients that a backend may do in one pass over memory, in any layout.
pub trait GradientOps: Backend {
    /// `gradient` where the output is positive, zero elsewhere.
    fn relu_gradient(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::relu_backward(output, gradient)
    }

    fn sum(one: FloatTensor<Self>, other: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_add(one, other)
    }
}

impl<B: Backend, C: CheckpointStrategy> GradientOps for Autodiff<B, C> {}

/// Like [`Gradients::register`], but adds with [`GradientOps::sum`]; `gradient` carries the node it belongs to.
pub(super) fn register<B: GradientOps>(grads: &mut Gradients, gradient: FloatTensor<Autodiff<B>>) {
    let (id, other) = (gradient.node.id, grads.remove::<B>(&gradient));
    let gradient = gradient.primitive;
    grads.register::<B>(id, other.into_iter().fold(gradient, B::sum));
}
