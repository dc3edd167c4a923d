//! Operations of the backend below Burn's fusion, queued as operations of its stream.

use std::fmt;
use std::marker::PhantomData;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};

/// Queues `run`, which computes tensors of the shapes and types `outputs` from `inputs`; `name` is for Burn's logs. No
/// thread waits, and nothing else is submitted earlier for it.
pub(super) fn queue<B: FusionBackend, const I: usize, const O: usize>(
    name: &'static str,
    inputs: [FloatTensor<Fusion<B>>; I],
    outputs: [(Shape, DType); O],
    run: impl Fn([FloatTensor<B>; I]) -> [FloatTensor<B>; O] + Send + Sync + 'static,
) -> [FloatTensor<Fusion<B>>; O] {
    let client = inputs[0].client.clone();
    let streams = OperationStreams::with_inputs(&inputs);
    let inputs = inputs.map(|input| input.into_ir());
    let outputs = outputs.map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype));
    let node = CustomOpIr::new(name, &inputs, &outputs);
    let queued = Queued::<B, _, I, O> { node: node.clone(), run, backend: PhantomData };
    let made = client.register(streams, OperationIr::Custom(node), queued);
    made.try_into().unwrap_or_else(|_| unreachable!("{name} has {O} outputs"))
}

struct Queued<B, F, const I: usize, const O: usize> {
    node: CustomOpIr,
    run: F,
    backend: PhantomData<B>,
}

impl<B, F, const I: usize, const O: usize> fmt::Debug for Queued<B, F, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.node.id)
    }
}

impl<B, F, const I: usize, const O: usize> Operation<B::FusionRuntime> for Queued<B, F, I, O>
where
    B: FusionBackend,
    F: Fn([FloatTensor<B>; I]) -> [FloatTensor<B>; O] + Send + Sync,
{
    fn execute(&self, handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>) {
        let (inputs, outputs) = self.node.as_fixed::<I, O>();
        let made = (self.run)(inputs.each_ref().map(|input| handles.get_float_tensor::<B>(input)));
        for (output, tensor) in outputs.iter().zip(made) {
            handles.register_float_tensor::<B>(&output.id, tensor);
        }
    }
}
