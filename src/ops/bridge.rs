//! Differentiable conversion between a home backend and a compute backend: one node on the common autodiff graph, whose
//! backward step converts the gradient back to the type of the input.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata};

use super::TrainBackend;
use super::node::tracked;
use super::precision::{ComputeBackend, MixedBackend};

impl<Home, Compute, C> ComputeBackend<Autodiff<Home, C>> for Autodiff<Compute, C>
where
    Home: TrainBackend,
    Compute: ComputeBackend<Home>,
    C: CheckpointStrategy,
{
    fn from_home(x: FloatTensor<Autodiff<Home, C>>, dtype: FloatDType) -> FloatTensor<Self> {
        let (source, output) = (x.dtype().into(), Compute::from_home(x.primitive.clone(), dtype));
        tracked::<Home, Compute, C>(x, output, move |gradient| Compute::to_home(gradient, source))
    }

    fn to_home(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Autodiff<Home, C>> {
        let (source, output) = (x.dtype().into(), Compute::to_home(x.primitive.clone(), dtype));
        tracked::<Compute, Home, C>(x, output, move |gradient| Compute::from_home(gradient, source))
    }
}

impl<B: MixedBackend, C: CheckpointStrategy> MixedBackend for Autodiff<B, C> {
    type Bf16 = Autodiff<B::Bf16, C>;
    type F16 = Autodiff<B::F16, C>;
}
