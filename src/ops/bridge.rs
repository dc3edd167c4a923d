//! Differentiable conversion between a home backend and a compute backend: one node on the common autodiff graph, whose
//! backward step converts the gradient back to the type of the input.

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

/// Backward step of home to compute. The state is the type of the gradient that it returns.
#[derive(Debug)]
struct FromHome<Home, Compute>(PhantomData<(Home, Compute)>);

impl<Home: Backend, Compute: ComputeBackend<Home>> Backward<Compute, 1> for FromHome<Home, Compute> {
    type State = FloatDType;

    fn backward(self, ops: Ops<FloatDType, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Compute>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<Home>(node.id, Compute::to_home(gradient, ops.state));
        }
    }
}

/// Backward step of compute to home.
#[derive(Debug)]
struct ToHome<Home, Compute>(PhantomData<(Home, Compute)>);

impl<Home: Backend, Compute: ComputeBackend<Home>> Backward<Home, 1> for ToHome<Home, Compute> {
    type State = FloatDType;

    fn backward(self, ops: Ops<FloatDType, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Home>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<Compute>(node.id, Compute::from_home(gradient, ops.state));
        }
    }
}

impl<Home, Compute, C> ComputeBackend<Autodiff<Home, C>> for Autodiff<Compute, C>
where
    Home: TrainBackend,
    Compute: ComputeBackend<Home>,
    C: CheckpointStrategy,
{
    fn from_home(x: FloatTensor<Autodiff<Home, C>>, dtype: FloatDType) -> FloatTensor<Self> {
        convert::<Home, Compute, C>(FromHome::<Home, Compute>(PhantomData), x, |x| Compute::from_home(x, dtype))
    }

    fn to_home(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Autodiff<Home, C>> {
        convert::<Compute, Home, C>(ToHome::<Home, Compute>(PhantomData), x, |x| Compute::to_home(x, dtype))
    }
}

/// Converts from `From` to `To` and registers the backward step.
fn convert<From: Backend, To: Backend, C: CheckpointStrategy>(
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
    // The parent must live until this step is registered: see `batch_norm.rs`.
    drop(x.node);
    output
}

impl<B: MixedBackend, C: CheckpointStrategy> MixedBackend for Autodiff<B, C> {
    type Bf16 = Autodiff<B::Bf16, C>;
    type F16 = Autodiff<B::F16, C>;
}
