//! A cut through the autodiff graph, where a model goes on on another device or in another process.
//!
//! The part before the cut ends in a number whose gradient is not computed: it is the one that the part after the cut
//! sends back. Nothing is registered for it after the forward pass, since Burn's graph must not change during a
//! backward pass. The part after the cut begins with a leaf.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Shape, Tensor};
use parking_lot::Mutex;

use super::tensor;

/// The gradient of a tensor before a cut, once it is known.
pub struct Awaited<B: Backend>(Arc<Mutex<Option<FloatTensor<B>>>>);

impl<B: Backend> Clone for Awaited<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> Debug for Awaited<B> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Awaited")
    }
}

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

#[derive(Debug)]
struct CutBackward;

impl<B: Backend> Backward<B, 1> for CutBackward {
    type State = Awaited<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let awaited = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |_| awaited.take());
    }
}

/// The end of the graph before a cut at `y`: a number, `[1]`, to start the backward pass from, and the place for the
/// gradient of `y`; without a place, nothing that is trained has computed `y`, and there is no backward pass.
pub fn cut<B: Backend>(y: FloatTensor<Autodiff<B>>) -> (Tensor<Autodiff<B>, 1>, Option<Awaited<B>>) {
    let awaited = Awaited(Arc::default());
    let device = B::float_device(&y.primitive);
    let zero = B::float_zeros(Shape::new([1]), &device, FloatDType::F32);
    let (end, awaited) = match CutBackward.prepare::<NoCheckpointing>([y.node.clone()]).compute_bound().stateful() {
        OpsKind::Tracked(step) => (step.finish(awaited.clone(), zero), Some(awaited)),
        OpsKind::UnTracked(step) => (step.finish(zero), None),
    };
    // The parent must live until this step is registered: see `batch_norm_backward.rs`.
    drop(y);
    (tensor(end), awaited)
}

pub fn leaf<B: Backend>(x: FloatTensor<B>) -> FloatTensor<Autodiff<B>> {
    let x = <Autodiff<B> as AutodiffBackend>::from_inner(x);
    <Autodiff<B> as burn::tensor::ops::FloatTensorOps<Autodiff<B>>>::float_set_require_grad(x, true)
}
