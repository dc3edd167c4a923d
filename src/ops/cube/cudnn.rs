//! Convolutions by cuDNN on CubeCL's memory.
//!
//! cuDNN computes on a stream of its own. CubeCL keeps its stream to itself, so that marks of the whole device order
//! both: cuDNN's work comes after all that is queued, and all that is queued later comes after it, without the host. So
//! it would wait for collectives, too: the process must have one device and no others to meet.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use burn::backend::cuda::CudaDevice;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use parking_lot::Mutex;

use super::memory;
use super::row_layout::{images, rows};
use crate::nvidia::Stream;
use crate::nvidia::cudnn::{Convolution, Handle, Library, Plan, Product};

/// Of the one device that uses cuDNN, by its index.
static DEVICE: Mutex<Option<(usize, Device)>> = Mutex::new(None);

struct Device {
    /// With the type of the result; `None` of what cuDNN refuses.
    plans: HashMap<Convolution, Option<(Plan, DType)>>,
    handle: Handle,
    stream: Arc<Stream>,
}

/// Lets cuDNN compute the convolutions of this process, which are all on the device `index`, each checked where it is
/// first used.
///
/// # Errors
/// What is missing and the remedy, in one line.
pub fn use_cudnn(index: usize) -> Result<(), String> {
    let (library, stream) = (Library::find()?, Stream::new(index)?);
    stream.follow_all()?;
    let handle = Handle::new(library, Some(stream.clone()))?;
    DEVICE.lock().get_or_insert((index, Device { plans: HashMap::new(), handle, stream }));
    Ok(())
}

pub(super) fn is_on() -> bool {
    DEVICE.lock().is_some()
}

/// The result, `[outer, channels, height, width]`, of the product of two tensors of that form; `None` if cuDNN refuses
/// it.
pub(super) fn product<R: CubeRuntime>(convolution: &Convolution, factors: [CubeTensor<R>; 2]) -> Option<CubeTensor<R>> {
    let index = (&factors[0].device as &dyn Any).downcast_ref::<CudaDevice>()?.index;
    let mut device = DEVICE.lock();
    let Device { plans, handle, stream } = device.as_mut().filter(|device| device.0 == index).map(|it| &mut it.1)?;
    let with = |result| Convolution { result, ..convolution.clone() };
    let refused = |why: String| tracing::warn!("cuDNN does not compute {convolution}: {why}");
    let plan = plans.entry(convolution.clone()).or_insert_with(|| {
        let plan = |result| Plan::new(handle, &with(result)).map(|plan| (plan, result));
        // Not every engine writes f32 from half types.
        let found = plan(convolution.result);
        let found =
            if convolution.dtype == convolution.result { found } else { found.or_else(|_| plan(convolution.dtype)) };
        found.map_err(refused).ok()
    });
    let (chosen, result) = plan.as_ref()?;
    let Ok(found) = queued(chosen, (handle, stream), &with(*result), factors).map_err(refused) else {
        *plan = None;
        return None;
    };
    let found = images(cast(found, convolution.result));
    // The update reads the gradients of weights as they lie.
    Some(if convolution.product == Product::WeightGradient { into_contiguous(found) } else { found })
}

/// `[outer, height, width, channels]`.
fn queued<R: CubeRuntime>(
    plan: &Plan,
    (handle, stream): (&Handle, &Arc<Stream>),
    convolution: &Convolution,
    factors: [CubeTensor<R>; 2],
) -> Result<CubeTensor<R>, String> {
    let (client, device) = (factors[0].client.clone(), factors[0].device.clone());
    let empty = |shape, dtype| empty_device_contiguous_dtype(client.clone(), device.clone(), shape, dtype);
    let [outer, channels, height, width] = match convolution.product {
        Product::Forward => convolution.y(),
        Product::WeightGradient => convolution.w,
        Product::InputGradient => convolution.x,
    };
    let mut made = empty(Shape::new([outer, height, width, channels]), convolution.result);
    let mut workspace = empty(Shape::new([plan.workspace().max(1)]), DType::U8);
    let [mut left, mut right] = factors.map(rows);
    let pointers =
        [&mut left, &mut right, &mut made, &mut workspace].map(|it| memory::of_cuda(it).map(|it| it.pointer));
    let [Some(left), Some(right), Some(result), Some(workspace)] = pointers else {
        return Err("the device does not show its memory".into());
    };
    let memory = match convolution.product {
        Product::Forward => [left, right, result],
        Product::WeightGradient => [left, result, right],
        Product::InputGradient => [result, right, left],
    };
    stream.follow_all()?;
    // SAFETY: the memory has the shapes of the convolution; what is freed here is used again by later work alone, which
    // waits for this.
    let ran = unsafe { plan.run(handle, memory, workspace) };
    // Part of it may be queued even after an error.
    stream.precede_all().unwrap_or_else(|why| panic!("the device failed after a convolution: {why}"));
    ran.map(|()| made)
}
