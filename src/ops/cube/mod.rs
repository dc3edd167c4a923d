//! The CubeCL backends: batch-norm by kernels of Kiln's own, the rest by Burn's, fused by Burn, through the default
//! bodies; one gradient works around a bug.

mod lift;
mod map;
mod norm;
mod norm_kernels;

use std::future::poll_fn;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

#[cfg(feature = "cuda")]
use burn::backend::Cuda;
#[cfg(feature = "wgpu")]
use burn::backend::Wgpu;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{ConvTransposeOptions, FloatTensor, FloatTensorOps};
use burn::tensor::{Slice, TensorMetadata, bf16, f16};
use burn_cubecl::kernel::into_contiguous_aligned;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::stream::OperationStreams;
use burn_fusion::{Fusion, NoOp, get_client};
use burn_ir::{BackendIr, InitOperationIr, OperationIr};
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::server::CopyDescriptor;
use tracing::info_span;

use super::{ConvOps, HostOps, Later, PoolOps, Sliding, UpdateOps};

macro_rules! default_bodies {
    ($home:ty, $($half:ty),*) => {
        default_bodies!(@compute $home);
        $(default_bodies!(@compute $half);)*
        impl UpdateOps for $home {}
    };
    (@compute $backend:ty) => {
        impl ConvOps for $backend {
            fn conv_input_gradient(
                x: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                gradient: FloatTensor<Self>,
                sliding: Sliding,
            ) -> FloatTensor<Self> {
                input_gradient::<Self>(x, weight, gradient, sliding)
            }
        }
        impl PoolOps for $backend {}
    };
}

#[cfg(feature = "cuda")]
default_bodies!(Cuda<f32, i32>, Cuda<bf16, i32>, Cuda<f16, i32>);
#[cfg(feature = "wgpu")]
default_bodies!(Wgpu<f32, i32>, Wgpu<bf16, i32>, Wgpu<f16, i32>);

/// Lets all threads of the process use one stream of a device. False if CubeCL has been used before with more.
///
/// CubeCL gives every thread its own, and orders a kernel behind those of the threads that allocated its operands: not
/// behind one that writes to another thread's memory, nor behind the last reads of memory that is used again.
pub fn use_one_stream() -> bool {
    static IS_ONE: LazyLock<bool> = LazyLock::new(|| {
        let is_unread = CubeClRuntimeConfig::storage().lock().is_none();
        let mut config = CubeClRuntimeConfig::clone(&CubeClRuntimeConfig::get());
        if is_unread {
            config.streaming.max_streams = 1;
            *CubeClRuntimeConfig::storage().lock() = Some(Arc::new(config.clone()));
        }
        config.streaming.max_streams == 1
    });
    *IS_ONE
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

    fn add_moments(left: [CubeTensor<R>; 2], right: [CubeTensor<R>; 2], counts: [f64; 2]) -> [CubeTensor<R>; 2] {
        norm::add_moments(left, right, counts)
    }

    fn read_later(x: FloatTensor<Self>) -> Later {
        let x = into_contiguous_aligned(Self::share(x));
        let size = x.shape().num_elements() * x.elem_size();
        let copy = CopyDescriptor::new(
            x.handle.clone().binding(),
            x.meta.shape().clone(),
            x.meta.strides().clone(),
            x.elem_size(),
        );
        let mut is_queued = false;
        let mut later = move || if std::mem::replace(&mut is_queued, true) { Poll::Ready(()) } else { Poll::Pending };
        let mut bytes = Box::pin(async move {
            // This call queues the copy; its future, which borrows the client, only waits for it.
            let bytes = x.client.read_one_tensor_async(copy);
            poll_fn(|_| later()).await;
            bytes.await
        });
        drop(bytes.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        Box::new(move || {
            let _copy = info_span!("late copy to host", bytes = size).entered();
            let bytes = burn::tensor::read_sync(bytes).expect("a device that computes can be read");
            bytemuck::pod_collect_to_vec(&bytes)
        })
    }
}

/// Burn's input gradient, corrected for kernels narrower than their stride, as in a shortcut's 1x1 projection.
///
/// Burn 0.21 picks the faster of two algorithms. The direct one (burn-cubecl, `transpose_direct.rs`) visits
/// `kernel - stride + 1` positions per pixel: none for such a kernel, so it is fast and all gradients are zero. Padding
/// the kernel with zeros to the width of the stride makes both correct and changes no value.
fn input_gradient<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    sliding: Sliding,
) -> FloatTensor<B> {
    let Sliding { stride, padding, .. } = sliding;
    let kernel = weight.shape();
    if kernel[2] >= stride && kernel[3] >= stride {
        return B::conv2d_x_backward(x, weight, gradient, sliding.options());
    }
    let weight = widened::<B>(widened::<B>(weight, 2, stride), 3, stride);
    // The widened kernel may reach beyond the image, which is cut off below, or end before it.
    let reached = |axis: usize| (gradient.shape()[axis] - 1) * stride + weight.shape()[axis] - 2 * padding;
    let missing = [2, 3].map(|axis| x.shape()[axis].saturating_sub(reached(axis)));
    let options = ConvTransposeOptions::new([stride; 2], [padding; 2], missing, [1, 1], 1);
    let whole: Vec<_> = x.shape().iter().map(|size| Slice::from(0..*size)).collect();
    B::float_slice(B::conv_transpose2d(gradient, weight, None, options), &whole)
}

/// `values`, padded with zeros at the end of `axis` to a length of `size`.
fn widened<B: Backend>(values: FloatTensor<B>, axis: usize, size: usize) -> FloatTensor<B> {
    let mut shape = values.shape();
    if shape[axis] >= size {
        return values;
    }
    shape[axis] = size - shape[axis];
    let zeros = B::float_zeros(shape, &B::float_device(&values), values.dtype().into());
    B::float_cat(vec![values, zeros], axis)
}
