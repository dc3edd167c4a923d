//! Convolutions by cuDNN on CubeCL's memory.
//!
//! cuDNN computes on a stream of its own. CubeCL keeps its streams to itself, so that marks of the whole context order
//! both: cuDNN's work comes after all that is queued, and all that is queued later comes after it, without the host.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

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

static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
static DEVICES: LazyLock<Mutex<HashMap<usize, Device>>> = LazyLock::new(Mutex::default);

struct Device {
    stream: Arc<Stream>,
    handle: Handle,
    /// With the type of the result; `None` of what cuDNN refuses.
    plans: HashMap<Convolution, Option<(Plan, DType)>>,
}

/// Lets cuDNN compute the convolutions of this process on `devices`, each checked where it is first used.
///
/// # Errors
/// What is missing and the remedy, in one line.
pub fn use_cudnn(devices: &[usize]) -> Result<(), String> {
    let library = Library::find()?;
    for index in devices {
        let stream = Stream::new(*index)?;
        if stream.mark(true)?.is_none() {
            return Err(
                "CUDA's driver is older than 12.5, with which cuDNN can wait for CubeCL; update the driver".into()
            );
        }
        let handle = Handle::new(library.clone(), Some(stream.clone()))?;
        DEVICES.lock().insert(*index, Device { stream, handle, plans: HashMap::new() });
    }
    LIBRARY.get_or_init(|| library);
    Ok(())
}

pub(super) fn is_on() -> bool {
    LIBRARY.get().is_some()
}

/// The result, `[outer, channels, height, width]`, of the product of two tensors of that form; `None` if cuDNN refuses
/// it.
pub(super) fn product<R: CubeRuntime>(convolution: &Convolution, factors: [CubeTensor<R>; 2]) -> Option<CubeTensor<R>> {
    let index = (&factors[0].device as &dyn Any).downcast_ref::<CudaDevice>()?.index;
    let mut devices = DEVICES.lock();
    let device = devices.get_mut(&index)?;
    let (handle, refused) = (&device.handle, |why: String| tracing::warn!("{convolution:?}: {why}"));
    // Not every engine writes f32 from half types.
    let plan = |result| Plan::new(handle, &Convolution { result, ..convolution.clone() }).map(|plan| (plan, result));
    let new = || plan(convolution.result).or_else(|_| plan(convolution.dtype)).map_err(refused).ok();
    let (plan, result) = device.plans.entry(convolution.clone()).or_insert_with(new).as_ref()?;
    let found = queued(plan, device, &Convolution { result: *result, ..convolution.clone() }, factors);
    let found = cast(found.map_err(refused).ok()?, convolution.result);
    // The update reads the gradients of weights as they lie.
    Some(if convolution.product == Product::WeightGradient { into_contiguous(images(found)) } else { images(found) })
}

/// `[outer, height, width, channels]`.
fn queued<R: CubeRuntime>(
    plan: &Plan,
    Device { stream, handle, .. }: &Device,
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
    let before = stream.mark(true)?.ok_or("the driver marks no context")?;
    stream.wait_for(&before)?;
    // SAFETY: the memory has the shapes of the convolution; what is freed here is used again by later work alone, which
    // waits for this.
    unsafe { plan.run(handle, memory, workspace) }?;
    stream.precede_all()?;
    Ok(made)
}
