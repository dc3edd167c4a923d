//! LibTorch's tensors as memory of the host, and the threads that work on it.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use burn::backend::libtorch::TchTensor;
use tch::{Device, Kind, Tensor};

unsafe extern "C" {
    fn kiln_each(count: i64, work: extern "C" fn(*mut c_void, i64), context: *mut c_void);
}

/// On the threads of LibTorch's own operations: they spin for a while after each, and another pool's would have to share
/// the cores with them.
pub(super) fn each(count: usize, mut work: &(dyn Fn(usize) + Sync)) {
    extern "C" fn call(work: *mut c_void, number: i64) {
        // SAFETY: `kiln_each` passes on what it is given below, while it lives.
        let work = unsafe { &*work.cast::<&(dyn Fn(usize) + Sync)>() };
        work(number as usize);
    }
    // SAFETY: all threads are done with `work`, which they only share, when the call returns.
    unsafe { kiln_each(count as i64, call, (&raw mut work).cast()) };
}

/// The tensor, contiguous, in memory that nobody else holds.
pub(super) fn alone(tensor: TchTensor) -> TchTensor {
    match (tensor.tensor.is_contiguous(), tensor.can_mut()) {
        (true, true) => tensor,
        (true, false) => TchTensor::new(tensor.tensor.copy()),
        (false, _) => TchTensor::new(tensor.tensor.contiguous()),
    }
}

/// What a tensor of some types holds: any bits are a value of it.
pub(super) trait Value {
    fn is_of(kind: Kind) -> bool;
}

impl Value for f32 {
    fn is_of(kind: Kind) -> bool {
        kind == Kind::Float
    }
}

/// The bits of either half type.
impl Value for u16 {
    fn is_of(kind: Kind) -> bool {
        matches!(kind, Kind::Half | Kind::BFloat16)
    }
}

/// The values of a contiguous tensor in the host's memory.
pub(super) fn values<T: Value>(tensor: &Tensor) -> &[T] {
    check::<T>(tensor);
    // A tensor without elements has no memory.
    if tensor.numel() == 0 {
        return &[];
    }
    // SAFETY: so much memory, of that type and without gaps, belongs to the tensor that is borrowed.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

/// The memory of a new tensor, which may hold anything.
pub(super) fn room<T: Value>(tensor: &mut TchTensor) -> &mut [MaybeUninit<T>] {
    let values = values_mut::<T>(tensor);
    // SAFETY: what may be uninitialised has the layout of what is not.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// As [`values`], for a tensor that is made by [`alone`].
pub(super) fn values_mut<T: Value>(tensor: &mut TchTensor) -> &mut [T] {
    check::<T>(&tensor.tensor);
    if tensor.tensor.numel() == 0 {
        return &mut [];
    }
    // SAFETY: as in `values`; nobody else holds this memory.
    unsafe { std::slice::from_raw_parts_mut(tensor.tensor.data_ptr().cast(), tensor.tensor.numel()) }
}

fn check<T: Value>(tensor: &Tensor) {
    assert!(
        T::is_of(tensor.kind()) && tensor.is_contiguous() && tensor.device() == Device::Cpu,
        "the tensor is contiguous, of that type and in the host's memory"
    );
}
