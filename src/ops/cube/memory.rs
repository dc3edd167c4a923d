//! The memory of CUDA tensors, for libraries that work on it themselves.

use std::any::Any;

use burn::tensor::TensorMetadata;
use burn::tensor::backend::Backend;
use burn_cubecl::kernel::into_contiguous_aligned;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeRuntime};
use cubecl::client::ComputeClient;
use cubecl::cuda::CudaRuntime;

use crate::Memory;

/// The memory of a tensor of CUDA's runtime; `None` for others, and if the device fails.
///
/// Waits for all work that is queued on the device: CubeCL 0.10 keeps its stream to itself, so that no other stream can
/// wait for it, and it gives memory to a new tensor before the kernels that used it last have run.
pub(super) fn of_cuda<R: CubeRuntime>(x: &mut CubeTensor<R>) -> Option<Memory> {
    *x = into_contiguous_aligned(x.clone());
    let client = (&x.client as &dyn Any).downcast_ref::<ComputeClient<CudaRuntime>>()?;
    CubeBackend::<R, f32, i32, u8>::sync(&x.device).ok()?;
    let resource = client.get_resource(x.handle.clone()).ok()?;
    let pointer = resource.resource().ptr as *mut std::ffi::c_void;
    Some(Memory { pointer, length: x.shape().num_elements(), dtype: x.dtype() })
}
