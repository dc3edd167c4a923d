//! Which kernel computes a product, found where the product is first used: one that takes its size, and agrees with a
//! kernel that is simple enough to be trusted.
//!
//! CubeCL compiles a kernel for every size and type on the device's thread. A kernel that refuses a size says so when
//! its caller has gone on, and one that is wrong says nothing.

use std::collections::HashMap;
use std::sync::LazyLock;

use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use parking_lot::Mutex;

use super::row_layout::rows;
use crate::agreement::agrees;
use crate::nvidia::cudnn::Convolution;

/// Units that compare two tensors.
const UNITS: u32 = 1 << 14;

/// The places of the chosen kernels among their candidates, by device and product; after the last: the trusted one.
static CHOSEN: LazyLock<Mutex<HashMap<(String, Convolution), usize>>> = LazyLock::new(Mutex::default);

/// The result `[batch, channels, height, width]` of a product of tensors on `device` by the first of `candidates` that
/// computes what `trusted` does, or by that. `run` gives nothing where a candidate is refused at once. If the values of
/// the trusted one prove nothing, they are the result, and the next call checks again.
pub(super) fn first_right<R: CubeRuntime, K: Copy + std::fmt::Debug>(
    device: &R::Device,
    product: Convolution,
    candidates: &[K],
    run: impl Fn(K) -> Option<CubeTensor<R>>,
    trusted: impl FnOnce() -> CubeTensor<R>,
) -> CubeTensor<R> {
    let key = (format!("{device:?}"), product);
    let known = CHOSEN.lock().get(&key).copied();
    if known == Some(candidates.len()) {
        return trusted();
    }
    // One that gives nothing any more is replaced.
    if let Some(found) = known.and_then(|known| run(candidates[known])) {
        return found;
    }
    let expected = trusted();
    let client = expected.client.clone();
    // Surfaces earlier errors first, so that no candidate is blamed for them.
    client.flush().unwrap_or_else(|error| panic!("the device failed before {}: {error:?}", key.1));
    let (mut chosen, mut found) = (candidates.len(), None);
    for (place, kernel) in candidates.iter().enumerate() {
        let Some(result) = run(*kernel) else { continue };
        let Some([difference, largest]) = difference(&result, &expected) else { continue };
        let Some(is_right) = agrees([difference, largest]) else { return expected };
        if !is_right {
            tracing::warn!(
                "{} by the kernel {kernel:?} is off by {difference:.1e} where values reach {largest:.1e}: another \
                 kernel computes it",
                key.1
            );
            continue;
        }
        (chosen, found) = (place, Some(result));
        break;
    }
    if chosen == candidates.len() {
        tracing::warn!("no faster kernel than Burn's direct convolution computes {}", key.1);
    }
    CHOSEN.lock().insert(key, chosen);
    found.unwrap_or(expected)
}

/// The largest difference of two tensors of one shape and type, and the largest value of the second, both
/// [`f32::MAX`] at most; nothing if the device refused a kernel since the last question.
fn difference<R: CubeRuntime>(found: &CubeTensor<R>, expected: &CubeTensor<R>) -> Option<[f32; 2]> {
    let client = &found.client;
    let shape = Shape::new([2 * UNITS as usize]);
    let largest = empty_device_contiguous_dtype(client.clone(), found.device.clone(), shape, DType::F32);
    let dim = CubeDim::new_1d(256);
    let [found, expected] = [found, expected].map(|it| rows(it.clone()));
    let (count, dtype) = (found.shape().num_elements(), found.dtype);
    extremes::launch::<R>(
        client,
        CubeCount::Static(UNITS / 256, 1, 1),
        dim,
        found.into_tensor_arg(),
        expected.into_tensor_arg(),
        largest.clone().into_tensor_arg(),
        count,
        UNITS as usize,
        dtype.into(),
    );
    #[expect(clippy::disallowed_methods, reason = "a kernel is checked once")]
    let bytes = client.read_one(largest.handle).ok()?;
    let (pairs, _) = bytemuck::cast_slice::<u8, f32>(&bytes).as_chunks::<2>();
    Some(pairs.iter().fold([0.0; 2], |most, pair| [most[0].max(pair[0]), most[1].max(pair[1])]))
}

/// The largest difference and the largest value among every `units`-th element, in turns.
#[cube(launch)]
fn extremes<E: Float>(
    found: &Tensor<E>,
    expected: &Tensor<E>,
    largest: &mut Tensor<f32>,
    count: usize,
    #[comptime] units: usize,
    #[define(E)] _dtype: StorageType,
) {
    let far = f32::new(f32::MAX);
    let (mut difference, mut value) = (f32::new(0.0), f32::new(0.0));
    let mut at = ABSOLUTE_POS;
    while at < count {
        let right = f32::cast_from(expected[at]);
        let apart = (f32::cast_from(found[at]) - right).abs();
        // What is no number is smaller than nothing.
        difference = difference.max(select(apart < far, apart, far));
        value = value.max(select(right.abs() < far, right.abs(), far));
        at += units;
    }
    largest[2 * ABSOLUTE_POS] = difference;
    largest[2 * ABSOLUTE_POS + 1] = value;
}

#[cfg(all(test, feature = "wgpu"))]
mod wgpu {
    use std::cell::RefCell;

    use burn::backend::wgpu::{WgpuDevice, WgpuRuntime};
    use burn::tensor::TensorData;
    use burn::tensor::ops::FloatTensorOps;

    use super::*;
    use crate::nvidia::cudnn::Product;

    type B = burn_cubecl::CubeBackend<WgpuRuntime, f32, i32, u32>;

    fn made(values: [f32; 4]) -> CubeTensor<WgpuRuntime> {
        B::float_from_data(TensorData::new(values.to_vec(), [1, 4, 1, 1]), &WgpuDevice::default())
    }

    /// The values of a product, told from others by its `channels`, of which each candidate is what it makes, and
    /// which of them were asked.
    fn chosen(channels: usize, candidates: &[Option<[f32; 4]>], trusted: [f32; 4]) -> (Vec<f32>, Vec<usize>) {
        let (x, w) = ([1, channels, 1, 1], [4, channels, 1, 1]);
        let product = Convolution {
            product: Product::Forward,
            x,
            w,
            stride: 1,
            padding: 0,
            dtype: DType::F32,
            result: DType::F32,
        };
        let asked = RefCell::new(Vec::new());
        let run = |place: usize| {
            asked.borrow_mut().push(place);
            candidates[place].map(made)
        };
        let places: Vec<usize> = (0..candidates.len()).collect();
        let device = WgpuDevice::default();
        let found = first_right(&device, product, &places, run, || {
            asked.borrow_mut().push(places.len());
            made(trusted)
        });
        #[expect(clippy::disallowed_methods, reason = "a test may wait")]
        let values = found.client.read_one(found.handle).expect("it can be read");
        (bytemuck::pod_collect_to_vec(&values), asked.into_inner())
    }

    #[test]
    fn a_kernel_is_chosen_once_that_takes_the_size_and_computes_what_the_trusted_one_does() {
        let right = [1.0, -64.0, 0.5, 2.0];
        let (rounded, wrong) = ([1.5, -64.0, 0.0, 2.0], [1.0, -64.0, 0.5, 4.0]);
        let candidates = [None, Some(wrong), Some([f32::NAN; 4]), Some(rounded), Some(right)];
        assert_eq!(chosen(1, &candidates, right), (rounded.to_vec(), vec![5, 0, 1, 2, 3]));
        assert_eq!(chosen(1, &candidates, wrong), (rounded.to_vec(), vec![3]), "it is not checked again");
    }

    #[test]
    fn where_all_are_wrong_the_trusted_one_computes() {
        let right = [3.0; 4];
        for asked in [vec![1, 0], vec![1]] {
            assert_eq!(chosen(2, &[Some([4.0; 4])], right), (right.to_vec(), asked));
        }
    }

    #[test]
    fn zeros_prove_nothing() {
        let zeros = [0.0; 4];
        for asked in [vec![1, 0], vec![1, 0]] {
            assert_eq!(chosen(3, &[Some(zeros)], zeros), (zeros.to_vec(), asked));
        }
        assert_eq!(chosen(3, &[Some([9.0; 4])], zeros), (zeros.to_vec(), vec![1, 0]), "the trusted one's result");
        assert_eq!(chosen(3, &[Some(zeros)], [1.0; 4]), (vec![1.0; 4], vec![1, 0]), "other values do");
        assert_eq!(chosen(3, &[Some(zeros)], [1.0; 4]), (vec![1.0; 4], vec![1]), "it is not checked again");
    }

    #[test]
    fn values_that_overflow_prove_nothing() {
        let endless = [f32::INFINITY, 1.0, 1.0, 1.0];
        for asked in [vec![1, 0], vec![1, 0]] {
            assert_eq!(chosen(4, &[Some(endless)], endless), (endless.to_vec(), asked));
        }
        assert_eq!(chosen(4, &[Some([9.0; 4])], [1.0; 4]), (vec![1.0; 4], vec![1, 0]), "finite values do");
    }
}
