//! CPU tensors of LibTorch as slices, and work on LibTorch's threads.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use burn::backend::libtorch::TchTensor;
use burn::tensor::{bf16, f16};
use tch::{Device, Kind, Tensor};

unsafe extern "C" {
    fn kiln_parallel_for(count: i64, work: extern "C" fn(*mut c_void, i64), context: *mut c_void);
}

/// Runs `work` on the threads of LibTorch's own operations. They spin for a while after each operation, so another
/// thread pool would compete with them for cores.
pub(super) fn parallel_for(count: usize, mut work: &(dyn Fn(usize) + Sync)) {
    extern "C" fn call(work: *mut c_void, number: i64) {
        // SAFETY: `kiln_parallel_for` passes the pointer given below, which lives until it returns.
        let work = unsafe { &*work.cast::<&(dyn Fn(usize) + Sync)>() };
        work(number as usize);
    }
    // SAFETY: `work` is `Sync`, and no thread uses it after the call returns.
    unsafe { kiln_parallel_for(count as i64, call, (&raw mut work).cast()) };
}

/// The tensor, contiguous and without another reference to its memory.
pub(super) fn exclusive(tensor: TchTensor) -> TchTensor {
    match (tensor.tensor.is_contiguous(), tensor.can_mut()) {
        (true, true) => tensor,
        (true, false) => TchTensor::new(tensor.tensor.copy()),
        (false, _) => TchTensor::new(tensor.tensor.contiguous()),
    }
}

/// An element type for which any bits are a valid value.
pub(super) trait Value {
    const KINDS: &'static [Kind];
}

impl Value for f32 {
    const KINDS: &'static [Kind] = &[Kind::Float];
}

impl Value for bf16 {
    const KINDS: &'static [Kind] = &[Kind::BFloat16];
}

impl Value for f16 {
    const KINDS: &'static [Kind] = &[Kind::Half];
}

/// Whether Kiln's loops process tensors of this kind.
pub(super) fn is_activation(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::BFloat16 | Kind::Half)
}

/// An expression with `T` the type of activations of this kind.
macro_rules! of_kind {
    ($kind:expr, $T:ident => $value:expr) => {
        match $kind {
            tch::Kind::BFloat16 => {
                type $T = burn::tensor::bf16;
                $value
            }
            tch::Kind::Half => {
                type $T = burn::tensor::f16;
                $value
            }
            _ => {
                type $T = f32;
                $value
            }
        }
    };
}
pub(super) use of_kind;

/// The bits of either half type.
impl Value for u16 {
    const KINDS: &'static [Kind] = &[Kind::Half, Kind::BFloat16];
}

/// The values of a contiguous tensor in the host's memory.
pub(super) fn values<T: Value>(tensor: &Tensor) -> &[T] {
    check::<T>(tensor);
    // A tensor without elements has no memory.
    if tensor.numel() == 0 {
        return &[];
    }
    // SAFETY: the borrowed tensor owns that much contiguous memory of that type.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

pub(super) fn uninit_mut<T: Value>(tensor: &mut TchTensor) -> &mut [MaybeUninit<T>] {
    let values = values_mut::<T>(tensor);
    // SAFETY: `MaybeUninit<T>` has the layout of `T`.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// Like [`values`], for a new tensor, the result of [`exclusive`], or a parameter in an update, which nobody reads.
pub(super) fn values_mut<T: Value>(tensor: &mut TchTensor) -> &mut [T] {
    check::<T>(&tensor.tensor);
    if tensor.tensor.numel() == 0 {
        return &mut [];
    }
    // SAFETY: as in `values`; nobody else uses this memory meanwhile.
    unsafe { std::slice::from_raw_parts_mut(tensor.tensor.data_ptr().cast(), tensor.tensor.numel()) }
}

fn check<T: Value>(tensor: &Tensor) {
    assert!(
        T::KINDS.contains(&tensor.kind()) && tensor.is_contiguous() && tensor.device() == Device::Cpu,
        "the tensor is contiguous, of that type and in the host's memory"
    );
}
