//! Operations of the backend below Burn's fusion, queued as operations of its stream.

use std::fmt;
use std::marker::PhantomData;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use tracing::info_span;

/// A float tensor of CubeCL's backend with fusion.
pub(super) type FusionTensor<R, F, I, E> = FloatTensor<Fusion<CubeBackend<R, F, I, E>>>;

/// Queues `run`, which computes tensors of the shapes and types `outputs` from `inputs`; `name` is for profiles and
/// Burn's logs. No thread waits, and nothing else is submitted earlier for it.
pub(super) fn queue<B: FusionBackend, const I: usize, const O: usize>(
    name: &'static str,
    inputs: [FloatTensor<Fusion<B>>; I],
    outputs: [(Shape, DType); O],
    run: impl Fn([FloatTensor<B>; I]) -> [FloatTensor<B>; O] + Send + Sync + 'static,
) -> [FloatTensor<Fusion<B>>; O] {
    let all = move |inputs: Vec<_>| run(inputs.try_into().unwrap_or_else(|_| unreachable!("{name} has {I} inputs")));
    queue_all::<B, O>(name, inputs.into(), outputs, all)
}

/// [`queue`] for any number of inputs, at least one.
pub(super) fn queue_all<B: FusionBackend, const O: usize>(
    name: &'static str,
    inputs: Vec<FloatTensor<Fusion<B>>>,
    outputs: [(Shape, DType); O],
    run: impl Fn(Vec<FloatTensor<B>>) -> [FloatTensor<B>; O] + Send + Sync + 'static,
) -> [FloatTensor<Fusion<B>>; O] {
    let made = queue_many::<B>(name, inputs, outputs.into(), move |inputs| run(inputs).into());
    made.try_into().unwrap_or_else(|_| unreachable!("{name} has {O} outputs"))
}

/// [`queue_all`] for any number of outputs.
pub(super) fn queue_many<B: FusionBackend>(
    name: &'static str,
    inputs: Vec<FloatTensor<Fusion<B>>>,
    outputs: Vec<(Shape, DType)>,
    run: impl Fn(Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> + Send + Sync + 'static,
) -> Vec<FloatTensor<Fusion<B>>> {
    let client = inputs[0].client.clone();
    let streams = OperationStreams::with_inputs(&inputs);
    let inputs: Vec<_> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let output = |(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype);
    let outputs: Vec<_> = outputs.into_iter().map(output).collect();
    let node = CustomOpIr::new(name, &inputs, &outputs);
    let queued = Queued::<B, _> { node: node.clone(), run, backend: PhantomData };
    client.register(streams, OperationIr::Custom(node), queued)
}

struct Queued<B, F> {
    node: CustomOpIr,
    run: F,
    backend: PhantomData<B>,
}

impl<B, F> fmt::Debug for Queued<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.node.id)
    }
}

impl<B, F> Operation<B::FusionRuntime> for Queued<B, F>
where
    B: FusionBackend,
    F: Fn(Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> + Send + Sync,
{
    fn execute(&self, handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>) {
        let _phase = info_span!("operation", operation = self.node.id.as_str()).entered();
        let inputs = self.node.inputs.iter().map(|input| handles.get_float_tensor::<B>(input)).collect();
        for (output, tensor) in self.node.outputs.iter().zip((self.run)(inputs)) {
            handles.register_float_tensor::<B>(&output.id, tensor);
        }
    }
}
