//! A cut through the autodiff graph, where a model goes on on another device or in another process.
//!
//! The part before the cut ends in a number whose gradient is not computed: it is the one that the part after the cut
//! sends back. Nothing is registered for it after the forward pass, since Burn's graph must not change during a
//! backward pass. The part after the cut begins with a leaf.

use std::sync::Arc;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Shape, Tensor};
use parking_lot::Mutex;

use super::node::tracked;
use super::tensor;

/// The gradient of a tensor before a cut, once it is known.
#[derive(Debug, Clone)]
pub struct Awaited<B: Backend>(Arc<Mutex<Option<FloatTensor<B>>>>);

impl<B: Backend> Awaited<B> {
    /// Gives the gradient, before the backward pass.
    pub fn set(&self, gradient: FloatTensor<B>) {
        *self.0.lock() = Some(gradient);
    }

    fn take(&self) -> FloatTensor<B> {
        let gradient = self.0.lock().take();
        gradient.expect("the gradient is set before the backward pass")
    }
}

/// The end of the graph before a cut at `y`: a number, `[1]`, to start the backward pass from, and the place for the
/// gradient of `y`; without a place, nothing that is trained has computed `y`, and there is no backward pass.
pub fn cut<B: Backend>(y: FloatTensor<Autodiff<B>>) -> (Tensor<Autodiff<B>, 1>, Option<Awaited<B>>) {
    let awaited = Awaited(Arc::default());
    let place = (!y.node.requirement.is_none()).then(|| awaited.clone());
    let zero = B::float_zeros(Shape::new([1]), &B::float_device(&y.primitive), FloatDType::F32);
    (tensor(tracked::<B, NoCheckpointing>(y, zero, move |_| awaited.take())), place)
}

pub fn leaf<B: Backend>(x: FloatTensor<B>) -> FloatTensor<Autodiff<B>> {
    let x = <Autodiff<B> as AutodiffBackend>::from_inner(x);
    <Autodiff<B> as burn::tensor::ops::FloatTensorOps<Autodiff<B>>>::float_set_require_grad(x, true)
}
