//! The memory of CUDA tensors, for libraries that work on it themselves.

use std::any::Any;

use burn::tensor::TensorMetadata;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous_aligned;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::ComputeClient;
use cubecl::cuda::CudaRuntime;

use crate::Memory;

/// The memory of a tensor of CUDA's runtime; `None` for others.
///
/// Kernels that write to it may still be queued: its own, and those of the tensor that had this memory before.
pub(super) fn of_cuda<R: CubeRuntime>(x: &mut CubeTensor<R>) -> Option<Memory> {
    *x = into_contiguous_aligned(x.clone());
    let client = (&x.client as &dyn Any).downcast_ref::<ComputeClient<CudaRuntime>>()?;
    let resource = client.get_resource(x.handle.clone()).ok()?;
    let pointer = resource.resource().ptr as *mut std::ffi::c_void;
    Some(Memory { pointer, length: x.shape().num_elements(), dtype: x.dtype() })
}
