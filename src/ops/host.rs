//! Transfers of f32 tensors between a device and the host, each with a single copy, and between threads.

use std::ffi::c_void;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::TensorData;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType, Shape, TensorMetadata, bf16};
use kiln_kernels::{Activation, LEAST_ROUNDED};
use rayon::prelude::*;

use super::node::tracked;
use super::traffic::{reading, writing};
use super::{primitive, tensor};

/// The alignment, in elements, of each tensor in a vector of several.
pub const ARENA_ALIGNMENT: usize = 64;

/// A tensor that several threads may use.
pub type Shared<B> = FloatTensor<<B as HostOps>::Below>;

/// The memory of a tensor, for libraries that work on it themselves. It is valid while the tensor lives.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// The first element: an address of the host, or of the tensor's CUDA device.
    pub pointer: *mut c_void,
    /// Elements, one after the other.
    pub length: usize,
    pub dtype: DType,
}

/// A point in the work queued on a device; the call waits for it, or says how the device failed.
pub type Fence = Box<dyn FnOnce() -> Result<(), String> + Send + Sync>;

/// Values on their way to the host; the call waits for them.
pub type Later = Box<dyn FnOnce() -> Vec<f32> + Send>;

/// Moves f32 values to and from the host, and between threads.
pub trait HostOps: Backend {
    /// Whether several threads may use one tensor, and one device the tensors of another. With burn-fusion 0.21 they
    /// may not: it looks how many holders a tensor has before it submits an operation, so that of two threads that read
    /// it at once one may read it after its end.
    const CAN_SHARE: bool;

    /// The backend whose tensors several threads may use: the one below Burn's fusion, if there is a fusion.
    type Below: Backend<Device = Self::Device, FloatTensorPrimitive: Sync>;

    /// Whether the devices are the processor, whose memory is the host's.
    fn is_processor() -> bool {
        false
    }

    /// The tensor for other threads. Submits the operations that it depends on, and does not wait for the device.
    fn share(x: FloatTensor<Self>) -> Shared<Self>;

    /// The tensor for this thread, on `device`; without [`HostOps::CAN_SHARE`] that must be the one it is on.
    fn adopt(x: Shared<Self>, device: &Self::Device) -> FloatTensor<Self>;

    /// The sum, on the device of `left`, in its memory if that has no other reference; for devices as
    /// [`HostOps::adopt`].
    fn add(left: Shared<Self>, right: Shared<Self>) -> Shared<Self>;

    /// The memory of a contiguous tensor, which is made its only owner if it shares the host's memory; `None` if other
    /// libraries cannot reach this backend's tensors. Work that writes to it may still be queued on the device.
    fn memory(_x: &mut Shared<Self>) -> Option<Memory> {
        None
    }

    /// A wait for the work that is queued now and computes these tensors, which are made contiguous; `None` where that is
    /// on the device's default stream, for which other libraries can wait themselves.
    fn fence<const N: usize>(_x: [&mut Shared<Self>; N]) -> Option<Fence> {
        None
    }

    /// The f32 values of a tensor in the host's memory, which is made its only owner; `None` on devices.
    fn values_mut(_x: &mut Shared<Self>) -> Option<&mut [f32]> {
        None
    }

    /// The tensor in another type.
    fn cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        Self::float_cast(x, dtype)
    }

    /// Whether `x`, `[batch, channels, height, width]`, has the channels of a pixel side by side in memory. Kernels of
    /// some backends sum in another order then.
    fn has_channels_innermost(_x: &FloatTensor<Self>) -> bool {
        false
    }

    /// Means and sums of squared deviations, `[channels]`, of two sets of `counts` values as those of one.
    ///
    /// Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    fn add_moments(left: [Shared<Self>; 2], right: [Shared<Self>; 2], counts: [f64; 2]) -> [Shared<Self>; 2] {
        let MomentWeights { right: share, between } = MomentWeights::of(counts);
        let [[mean, m2], [other_mean, other_m2]] = [left, right].map(|values| values.map(tensor::<Self::Below, 1>));
        let apart = other_mean - mean.clone();
        let between = apart.clone() * apart.clone() * between;
        [mean + apart * share, m2 + other_m2 + between].map(primitive)
    }

    /// The values of an f32 vector rounded to the nearest bf16.
    fn rounded(mut x: Shared<Self>) -> Shared<Self> {
        if let Some(values) = Self::values_mut(&mut x) {
            values.par_iter_mut().with_min_len(LEAST_ROUNDED).for_each(|value| *value = bf16::of(*value).widened());
            return x;
        }
        primitive(tensor::<Self::Below, 1>(x).cast(FloatDType::BF16).cast(FloatDType::F32))
    }

    /// f32 vectors one after the other, each filled up with zeros to a multiple of [`ARENA_ALIGNMENT`].
    fn side_by_side(vectors: Vec<FloatTensor<Self>>) -> FloatTensor<Self> {
        let filled = |vector: FloatTensor<Self>| {
            let length = vector.shape().num_elements();
            let (missing, device) = (length.next_multiple_of(ARENA_ALIGNMENT) - length, Self::float_device(&vector));
            let zeros = (missing > 0).then(|| Self::float_zeros(Shape::new([missing]), &device, FloatDType::F32));
            std::iter::once(vector).chain(zeros)
        };
        Self::float_cat(vectors.into_iter().flat_map(filled).collect(), 0)
    }

    /// The values of an f32 vector from `start` on, which is a multiple of [`ARENA_ALIGNMENT`].
    fn part(vector: FloatTensor<Self>, start: usize, length: usize) -> FloatTensor<Self> {
        primitive(tensor::<Self, 1>(vector).slice(start..start + length))
    }

    /// Appends the values of an f32 tensor in row-major order. Blocks until the device has computed them.
    fn append_to(x: FloatTensor<Self>, values: &mut Vec<f32>) {
        let _copy = reading(x.shape().num_elements(), x.dtype());
        #[expect(clippy::disallowed_methods, reason = "the one read of tensors whose callers know that it waits")]
        let data = burn::tensor::read_sync(Self::float_into_data(x)).expect("a device that computes can be read");
        values.extend_from_slice(data.as_slice::<f32>().expect("gradients and weights are f32"));
    }

    /// Begins to copy the values of an f32 vector to the host. Where the default is replaced, they do not wait for
    /// operations that are queued later.
    fn read_later(x: FloatTensor<Self>) -> Later {
        let mut values = Vec::new();
        Self::append_to(x, &mut values);
        Box::new(|| values)
    }

    fn from_host(values: &[f32], device: &Self::Device) -> FloatTensor<Self> {
        let _copy = writing(values.len(), DType::F32);
        Self::float_from_data(TensorData::new(values.to_vec(), [values.len()]), device)
    }

    /// As [`HostOps::from_host`], of integers.
    fn integers(values: &[i32], device: &Self::Device) -> IntTensor<Self> {
        let _copy = writing(values.len(), DType::I32);
        Self::int_from_data(TensorData::new(values.to_vec(), [values.len()]), device)
    }
}

/// How much two sets of values weigh in their common moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MomentWeights {
    /// Share of the second set in the mean.
    pub right: f64,
    /// Factor of the squared difference of the means in the sum of squared deviations.
    pub between: f64,
}

impl MomentWeights {
    /// Those of sets of `left` and `right` values.
    pub(super) fn of([left, right]: [f64; 2]) -> Self {
        Self { right: right / (left + right), between: left * right / (left + right) }
    }
}

impl<B: HostOps, C: CheckpointStrategy> HostOps for Autodiff<B, C> {
    const CAN_SHARE: bool = B::CAN_SHARE;

    type Below = B::Below;

    fn is_processor() -> bool {
        B::is_processor()
    }

    fn share(x: FloatTensor<Self>) -> Shared<B> {
        B::share(x.primitive)
    }

    fn adopt(x: Shared<B>, device: &Self::Device) -> FloatTensor<Self> {
        Self::from_inner(B::adopt(x, device))
    }

    fn add(left: Shared<B>, right: Shared<B>) -> Shared<B> {
        B::add(left, right)
    }

    fn cast(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let (own, output) = (x.dtype().into(), B::cast(x.primitive.clone(), dtype));
        tracked::<B, C>(x, output, move |gradient| B::cast(gradient, own))
    }

    fn add_moments(left: [Shared<B>; 2], right: [Shared<B>; 2], counts: [f64; 2]) -> [Shared<B>; 2] {
        B::add_moments(left, right, counts)
    }

    fn append_to(x: FloatTensor<Self>, values: &mut Vec<f32>) {
        B::append_to(x.primitive, values);
    }

    fn read_later(x: FloatTensor<Self>) -> Later {
        B::read_later(x.primitive)
    }

    fn from_host(values: &[f32], device: &Self::Device) -> FloatTensor<Self> {
        Self::from_inner(B::from_host(values, device))
    }

    fn integers(values: &[i32], device: &Self::Device) -> IntTensor<Self> {
        B::integers(values, device)
    }
}

/// Waits for the device if phases are timed, so that its work counts for the phase that queued it and not for the next
/// one that reads.
pub fn settle<B: Backend>(device: &B::Device) {
    if is_timed() {
        // An error of the device is reported by the next read.
        drop(B::sync(device));
    }
}

/// Whether the crate's phases are timed.
pub fn is_timed() -> bool {
    tracing::span_enabled!(tracing::Level::INFO)
}

/// Gives freed memory back to the system. The allocator keeps it for the next step; what only the start of a run
/// needed, such as the initial weights, would stay until the end.
pub fn release_freed() {
    #[cfg(all(feature = "jemalloc", target_os = "linux", target_env = "gnu"))]
    {
        use std::ptr::null_mut;
        const ALL_ARENAS: &std::ffi::CStr = c"arena.4096.purge";
        // SAFETY: the command takes and gives no value. If another allocator is in use there is nothing to release.
        unsafe { tikv_jemalloc_sys::mallctl(ALL_ARENAS.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
    }
}
