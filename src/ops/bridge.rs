//! Differentiable conversion between a home backend and a compute backend: one node on the common autodiff graph, whose
//! backward step converts the gradient back to the type of the input.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata};

use super::TrainBackend;
use super::precision::{ComputeBackend, MixedBackend};

/// The backward step of a conversion: the conversion back. The state is the type of the gradient that it returns.
#[derive(Debug)]
struct Back<From: Backend, To: Backend>(fn(FloatTensor<To>, FloatDType) -> FloatTensor<From>);

impl<From: Backend, To: Backend> Backward<To, 1> for Back<From, To> {
    type State = FloatDType;

    fn backward(self, ops: Ops<FloatDType, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<To>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<From>(node.id, (self.0)(gradient, ops.state));
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
        convert::<Home, Compute, C>(Back(Compute::to_home), x, |x| Compute::from_home(x, dtype))
    }

    fn to_home(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Autodiff<Home, C>> {
        convert::<Compute, Home, C>(Back(Compute::from_home), x, |x| Compute::to_home(x, dtype))
    }
}

/// Converts from `From` to `To` and registers the backward step.
fn convert<From: Backend, To: Backend, C: CheckpointStrategy>(
    back: Back<From, To>,
    x: FloatTensor<Autodiff<From, C>>,
    cast: impl FnOnce(FloatTensor<From>) -> FloatTensor<To>,
) -> FloatTensor<Autodiff<To, C>> {
    let source = x.dtype().into();
    let prepared = back.prepare::<C>([x.node.clone()]).compute_bound().stateful();
    let output = cast(x.primitive);
    let output = match prepared {
        OpsKind::Tracked(step) => step.finish(source, output),
        OpsKind::UnTracked(step) => step.finish(output),
    };
    // The parent must live until this step is registered: see `batch_norm_backward.rs`.
    drop(x.node);
    output
}

impl<B: MixedBackend, C: CheckpointStrategy> MixedBackend for Autodiff<B, C> {
    type Bf16 = Autodiff<B::Bf16, C>;
    type F16 = Autodiff<B::F16, C>;
}
