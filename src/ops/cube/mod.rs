//! The CubeCL backends: batch-norm and the network's input by kernels of Kiln's own, the rest by Burn's, fused by Burn.

mod arena;
mod checked;
mod conv;
#[cfg(feature = "cuda")]
mod cudnn;
mod fusion;
mod halves;
mod images;
#[cfg(feature = "cuda")]
mod memory;
mod norm;
mod norm_kernels;
mod norm_passes;
mod products;
mod row_layout;
mod update;
mod weight_gradient;
mod weights;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use burn::tensor::TensorMetadata;
use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn_cubecl::kernel::into_contiguous_aligned;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::stream::OperationStreams;
use burn_fusion::{Fusion, NoOp, get_client};
use burn_ir::{BackendIr, InitOperationIr, OperationIr};
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::server::CopyDescriptor;
use parking_lot::Mutex;

#[cfg(feature = "cuda")]
pub use cudnn::use_cudnn;

#[cfg(feature = "cuda")]
use super::Memory;
use super::traffic::late_reading;
use super::{Fence, HostOps, Later};

/// Lets all threads of the process use one stream of a device. False if CubeCL has been used before with more. Compiled
/// kernels are kept in `kernels`, or where cubecl.toml says.
///
/// CubeCL gives every thread its own, and orders a kernel after those of the threads that allocated its operands: not
/// after one that writes to another thread's memory, nor after the last reads of memory that is reused.
pub fn use_one_stream(kernels: Option<&Path>) -> bool {
    static IS_ONE: OnceLock<bool> = OnceLock::new();
    *IS_ONE.get_or_init(|| {
        let is_unread = CubeClRuntimeConfig::storage().lock().is_none();
        let mut config = CubeClRuntimeConfig::clone(&CubeClRuntimeConfig::get());
        if is_unread {
            config.streaming.max_streams = 1;
            let kept = kernels.map(|kernels| CacheConfig::File(kernels.into()));
            config.compilation.cache = config.compilation.cache.or(kept);
            *CubeClRuntimeConfig::storage().lock() = Some(Arc::new(config.clone()));
        }
        config.streaming.max_streams == 1
    })
}

/// Threads share the tensors of the backend below Burn's fusion, once the operations on which they depend are submitted
/// to the one stream of the device.
impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> HostOps for Fusion<CubeBackend<R, F, I, E>> {
    const CAN_SHARE: bool = false;

    type Below = CubeBackend<R, F, I, E>;

    fn share(x: FloatTensor<Self>) -> CubeTensor<R> {
        let client = x.client.clone();
        client.resolve_tensor_float::<Self::Below>(x)
    }

    fn adopt(x: CubeTensor<R>, device: &Self::Device) -> FloatTensor<Self> {
        let client = get_client::<Self::Below>(device);
        let (shape, dtype, handle) = (x.shape(), x.dtype(), Self::Below::float_tensor_handle(x));
        let made = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
        let made = OperationIr::Init(made);
        client.register(OperationStreams::default(), made, NoOp::<Self::Below>::new()).swap_remove(0)
    }

    fn add(left: CubeTensor<R>, right: CubeTensor<R>) -> CubeTensor<R> {
        Self::Below::float_add(left, right)
    }

    #[cfg(feature = "cuda")]
    fn memory(x: &mut CubeTensor<R>) -> Option<Memory> {
        memory::of_cuda(x)
    }

    fn fence<const N: usize>(x: [&mut CubeTensor<R>; N]) -> Option<Fence> {
        let clients = x.map(|x| {
            *x = into_contiguous_aligned(x.clone());
            x.client.clone()
        });
        // It is set on the one stream now; its future, which other threads must not share, only waits.
        let reached = Mutex::new(clients.first()?.sync());
        let failed = |failure| format!("the device failed: {failure}").replace('\n', " ");
        Some(Box::new(move || burn::tensor::read_sync(reached.into_inner()).map_err(failed)))
    }

    fn add_moments(left: [CubeTensor<R>; 2], right: [CubeTensor<R>; 2], counts: [f64; 2]) -> [CubeTensor<R>; 2] {
        norm::add_moments(left, right, counts)
    }

    fn rounded(x: CubeTensor<R>) -> CubeTensor<R> {
        halves::rounded(x)
    }

    fn side_by_side(vectors: Vec<FloatTensor<Self>>) -> FloatTensor<Self> {
        arena::side_by_side::<R, F, I, E>(vectors)
    }

    fn part(vector: FloatTensor<Self>, start: usize, length: usize) -> FloatTensor<Self> {
        arena::part::<R, F, I, E>(vector, start, length)
    }

    fn read_later(x: FloatTensor<Self>) -> Later {
        let x = into_contiguous_aligned(Self::share(x));
        let (count, dtype) = (x.shape().num_elements(), x.dtype());
        let copy = CopyDescriptor::new(
            x.handle.clone().binding(),
            x.meta.shape().clone(),
            x.meta.strides().clone(),
            x.elem_size(),
        );
        let mut is_queued = false;
        let mut later = move || if std::mem::replace(&mut is_queued, true) { Poll::Ready(()) } else { Poll::Pending };
        let mut bytes = Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "it does not wait here")]
            // This call queues the copy; its future, which borrows the client, only waits for it.
            let bytes = x.client.read_one_tensor_async(copy);
            poll_fn(|_| later()).await;
            bytes.await
        });
        drop(bytes.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        let mut queued = Queued(Some(bytes));
        Box::new(move || {
            let _copy = late_reading(count, dtype);
            let bytes = queued.0.take().expect("it is read once");
            let bytes = burn::tensor::read_sync(bytes).expect("a device that computes can be read");
            bytemuck::pod_collect_to_vec(&bytes)
        })
    }
}

/// A copy that the device has begun. Where nobody takes it, it is waited for all the same: the memory to which a device
/// copies goes to the next copy, and wgpu refuses all work with memory that is still mapped.
struct Queued<F: Future + Unpin>(Option<F>);

impl<F: Future + Unpin> Drop for Queued<F> {
    fn drop(&mut self) {
        if let Some(bytes) = self.0.take() {
            // The thread may unwind, and nobody asks for an error.
            drop(catch_unwind(AssertUnwindSafe(|| drop(burn::tensor::read_sync(bytes)))));
        }
    }
}
