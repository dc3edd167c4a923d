//! An identity that shows the gradient that passes through it.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

/// Who is shown the gradient, during the backward pass.
pub struct Watcher<B: Backend>(pub Arc<dyn Fn(FloatTensor<B>) + Send + Sync>);

impl<B: Backend> Clone for Watcher<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> Debug for Watcher<B> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

#[derive(Debug)]
struct WatchedBackward;

impl<B: Backend> Backward<B, 1> for WatchedBackward {
    type State = Watcher<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let Watcher(see) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |gradient| {
            see(gradient.clone());
            gradient
        });
    }
}

/// `x`, with its gradient shown to `watcher`, if it has one.
pub fn watched<B: Backend>(x: FloatTensor<Autodiff<B>>, watcher: Watcher<B>) -> FloatTensor<Autodiff<B>> {
    let same = x.primitive.clone();
    let y = match WatchedBackward.prepare::<NoCheckpointing>([x.node.clone()]).compute_bound().stateful() {
        OpsKind::Tracked(step) => step.finish(watcher, same),
        OpsKind::UnTracked(step) => step.finish(same),
    };
    // The parent must live until this step is registered: see `batch_norm_backward.rs`.
    drop(x);
    y
}
