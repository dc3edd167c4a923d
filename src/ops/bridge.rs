//! The way between a home backend and a compute backend on the autodiff graph: one node, whose gradient takes the same
//! way back in the type it came from. Both sides stay on one graph.

use std::marker::PhantomData;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata};

use super::TrainBackend;
use super::precision::{ComputeBackend, MixedBackend};

/// From the home backend to the compute backend; its state is the type that the gradient returns in.
#[derive(Debug)]
struct Bring<Home, Compute>(PhantomData<(Home, Compute)>);

impl<Home: Backend, Compute: ComputeBackend<Home>> Backward<Compute, 1> for Bring<Home, Compute> {
    type State = FloatDType;

    fn backward(self, ops: Ops<FloatDType, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Compute>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<Home>(node.id, Compute::give(gradient, ops.state));
        }
    }
}

/// From the compute backend back home.
#[derive(Debug)]
struct Give<Home, Compute>(PhantomData<(Home, Compute)>);

impl<Home: Backend, Compute: ComputeBackend<Home>> Backward<Home, 1> for Give<Home, Compute> {
    type State = FloatDType;

    fn backward(self, ops: Ops<FloatDType, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Home>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<Compute>(node.id, Compute::bring(gradient, ops.state));
        }
    }
}

impl<Home, Compute, C> ComputeBackend<Autodiff<Home, C>> for Autodiff<Compute, C>
where
    Home: TrainBackend,
    Compute: ComputeBackend<Home>,
    C: CheckpointStrategy,
{
    fn bring(x: FloatTensor<Autodiff<Home, C>>, dtype: FloatDType) -> FloatTensor<Self> {
        cross::<Home, Compute, C>(Bring::<Home, Compute>(PhantomData), x, |x| Compute::bring(x, dtype))
    }

    fn give(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Autodiff<Home, C>> {
        cross::<Compute, Home, C>(Give::<Home, Compute>(PhantomData), x, |x| Compute::give(x, dtype))
    }
}

/// Crosses from `From` to `To` and registers the way back.
fn cross<From: Backend, To: Backend, C: CheckpointStrategy>(
    way: impl Backward<To, 1, State = FloatDType>,
    x: FloatTensor<Autodiff<From, C>>,
    cast: impl FnOnce(FloatTensor<From>) -> FloatTensor<To>,
) -> FloatTensor<Autodiff<To, C>> {
    let source = x.dtype().into();
    let prepared = way.prepare::<C>([x.node.clone()]).compute_bound().stateful();
    let output = cast(x.primitive);
    let output = match prepared {
        OpsKind::Tracked(step) => step.finish(source, output),
        OpsKind::UnTracked(step) => step.finish(output),
    };
    // The parent's reference count must outlive the registration above: see `batch_norm`.
    drop(x.node);
    output
}

impl<B: MixedBackend, C: CheckpointStrategy> MixedBackend for Autodiff<B, C> {
    type Bf16 = Autodiff<B::Bf16, C>;
    type F16 = Autodiff<B::F16, C>;
}
