//! Differentiable operations of one input, each from its output and a function for the gradient.

use std::fmt::{Debug, Formatter};
use std::marker::PhantomData;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{CheckpointStrategy, NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

/// The backward step of an operation.
struct Step<B, F>(F, PhantomData<B>);

impl<B, F> Debug for Step<B, F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Step")
    }
}

impl<B: Backend, F> Backward<B, 1> for Step<B, F>
where
    F: FnOnce(FloatTensor<B>) -> FloatTensor<B> + Send + 'static,
{
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, (self.0)(gradient));
        }
    }
}

/// `output`, which was computed from `x`, on the graph; `step` makes the gradient of `x` of that of `output`.
pub(super) fn tracked<B: Backend, C: CheckpointStrategy>(
    x: FloatTensor<Autodiff<B, C>>,
    output: FloatTensor<B>,
    step: impl FnOnce(FloatTensor<B>) -> FloatTensor<B> + Send + 'static,
) -> FloatTensor<Autodiff<B, C>> {
    let step = Step::<B, _>(step, PhantomData);
    let output = step.prepare::<C>([x.node.clone()]).compute_bound().stateless(output);
    // The parent must live until this step is registered: see `batch_norm_backward.rs`.
    drop(x);
    output
}

/// `x`; in the backward pass `see` is shown its gradient, if it has one.
pub fn watched<B: Backend>(
    x: FloatTensor<Autodiff<B>>,
    see: impl FnOnce(FloatTensor<B>) + Send + 'static,
) -> FloatTensor<Autodiff<B>> {
    let same = x.primitive.clone();
    tracked::<B, NoCheckpointing>(x, same, |gradient| {
        see(gradient.clone());
        gradient
    })
}
