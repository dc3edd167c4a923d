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

/// The backward step of an operation from a backend to another or the same.
struct Step<From, To, F>(F, PhantomData<(From, To)>);

impl<From, To, F> Debug for Step<From, To, F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Step")
    }
}

impl<From: Backend, To: Backend, F> Backward<To, 1> for Step<From, To, F>
where
    F: FnOnce(FloatTensor<To>) -> FloatTensor<From> + Send + 'static,
{
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<To>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<From>(node.id, (self.0)(gradient));
        }
    }
}

/// `output`, which was computed from `x`, on the graph; `step` makes the gradient of `x` of that of `output`.
pub(super) fn tracked<From: Backend, To: Backend, C: CheckpointStrategy>(
    x: FloatTensor<Autodiff<From, C>>,
    output: FloatTensor<To>,
    step: impl FnOnce(FloatTensor<To>) -> FloatTensor<From> + Send + 'static,
) -> FloatTensor<Autodiff<To, C>> {
    let step = Step::<From, To, _>(step, PhantomData);
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
    tracked::<B, B, NoCheckpointing>(x, same, |gradient| {
        see(gradient.clone());
        gradient
    })
}
