//! The memory of CUDA tensors, for libraries that work on it themselves.

use std::any::Any;

use burn::tensor::TensorMetadata;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous_aligned;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::ComputeClient;
use cubecl::cuda::CudaRuntime;

use crate::Memory;

/// The memory of a tensor of CUDA's runtime; `None` for others, and if the device fails.
///
/// CubeCL's thread launches kernels in the order in which they were submitted. Once it has answered, those that write to
/// this memory are queued on the device, and so are those of its previous owner.
pub(super) fn of_cuda<R: CubeRuntime>(x: &mut CubeTensor<R>) -> Option<Memory> {
    *x = into_contiguous_aligned(x.clone());
    let client = (&x.client as &dyn Any).downcast_ref::<ComputeClient<CudaRuntime>>()?;
    let resource = client.get_resource(x.handle.clone()).ok()?;
    let pointer = resource.resource().ptr as *mut std::ffi::c_void;
    Some(Memory { pointer, length: x.shape().num_elements(), dtype: x.dtype() })
}
