//! ATen's kernels for batch-norm, for all devices and types; tensors of one value per channel are f32.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use burn::backend::libtorch::TchTensor;
use tch::{Device, Kind, Tensor};

use super::{INPUT, Pointer, WEIGHT, borrowed, check, owned};

unsafe extern "C" {
    fn kiln_running(running: *const Pointer, batch: *const Pointer, length: usize, momentum: f64) -> *mut c_char;
    fn kiln_counted(counts: *const Pointer, length: usize) -> *mut c_char;
    fn kiln_batch_norm_backward(
        dx: *mut Pointer,
        dweight: *mut Pointer,
        dbias: *mut Pointer,
        gradient: Pointer,
        x: Pointer,
        weight: Pointer,
        mean: Pointer,
        inv_std: Pointer,
        mask: c_int,
    ) -> *mut c_char;
}

/// Mean and sum of squared deviations per channel.
pub(super) fn moments(x: &TchTensor) -> (TchTensor, TchTensor) {
    let (x, channels) = (&x.tensor, x.tensor.size()[1]);
    let is_half = !matches!(x.kind(), Kind::Float | Kind::Double);
    // On a processor they have the type of the running averages, which are passed for that reason only.
    let running = (is_half && x.device() == Device::Cpu).then(|| Tensor::zeros([channels], (Kind::Float, Device::Cpu)));
    let (mean, variance) = x.batch_norm_update_stats(running.as_ref(), running.as_ref(), 0.0);
    let count = x.numel() as f64 / channels as f64;
    (TchTensor::new(mean), TchTensor::new(variance * count))
}

/// The output, and mean, unbiased variance and `1 / sqrt(biased variance + epsilon)` of the batch.
pub(super) fn train(x: &TchTensor, weight: &TchTensor, bias: &TchTensor, epsilon: f64) -> [TchTensor; 4] {
    let [x, weight, bias] = [x, weight, bias].map(|it| &it.tensor);
    // With momentum 1 what is running becomes that of the batch.
    let running = Tensor::zeros([2, x.size()[1]], (weight.kind(), weight.device()));
    let [mean, variance] = [0, 1].map(|row| running.get(row));
    let (output, _, inv_std) =
        x.native_batch_norm(Some(weight), Some(bias), Some(&mean), Some(&variance), true, 1.0, epsilon);
    [output, mean, variance, inv_std].map(TchTensor::new)
}

/// `running * (1 - momentum) + batch * momentum` of each pair, in the place of the first.
pub(super) fn average(running: &[TchTensor], batch: &[TchTensor], momentum: f64) {
    assert_eq!(running.len(), batch.len(), "every average has statistics of the batch");
    let [running, batch] = [running, batch].map(|tensors| tensors.iter().map(borrowed).collect::<Vec<_>>());
    // SAFETY: both have the given length, and their tensors live until after the call.
    check(unsafe { kiln_running(running.as_ptr(), batch.as_ptr(), running.len(), momentum) });
}

/// Each count plus one, in its place.
pub(super) fn count(counts: &[TchTensor]) {
    let counts: Vec<_> = counts.iter().map(borrowed).collect();
    // SAFETY: as in `average`.
    check(unsafe { kiln_counted(counts.as_ptr(), counts.len()) });
}

/// `(x - mean) * scale + bias`.
pub(super) fn apply(x: &TchTensor, mean: &TchTensor, scale: &TchTensor, bias: &TchTensor) -> TchTensor {
    let [x, mean, scale, bias] = [x, mean, scale, bias].map(|it| &it.tensor);
    let one = mean.ones_like();
    TchTensor::new(x.native_batch_norm(Some(scale), Some(bias), Some(mean), Some(&one), false, 0.0, 0.0).0)
}

/// The sums per channel of `gradient` and of `gradient * (x - mean)`.
pub(super) fn gradient_sums(gradient: &TchTensor, x: &TchTensor, mean: &TchTensor) -> [TchTensor; 2] {
    // With `inv_std` one, the gradient of the weight is the sum of gradient * (x - mean).
    let one = TchTensor::new(mean.tensor.ones_like());
    let [_, weighted, sum] = backward(gradient, x, &one, [mean, &one], WEIGHT);
    [sum, weighted].map(owned)
}

/// The gradients of input, weight and bias of a batch-norm over this batch; `statistics` are mean and `1 / sqrt(biased
/// variance + epsilon)`.
pub(super) fn gradients(
    gradient: &TchTensor,
    x: &TchTensor,
    weight: &TchTensor,
    statistics: [&TchTensor; 2],
) -> [TchTensor; 3] {
    backward(gradient, x, weight, statistics, INPUT | WEIGHT).map(owned)
}

fn backward(
    gradient: &TchTensor,
    x: &TchTensor,
    weight: &TchTensor,
    [mean, inv_std]: [&TchTensor; 2],
    mask: c_int,
) -> [Pointer; 3] {
    let [mut dx, mut dweight, mut dbias] = [null_mut(); 3];
    let [gradient, x, weight, mean, inv_std] = [gradient, x, weight, mean, inv_std].map(borrowed);
    // SAFETY: the results that `mask` names are written before the call returns without a message.
    check(unsafe {
        kiln_batch_norm_backward(&mut dx, &mut dweight, &mut dbias, gradient, x, weight, mean, inv_std, mask)
    });
    [dx, dweight, dbias]
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPSILON: f64 = 1e-5;

    fn noise(shape: &[i64]) -> Tensor {
        let length = shape.iter().product::<i64>();
        let values = Tensor::arange(length, (Kind::Float, Device::Cpu));
        ((values * 37.0).remainder(101.0) / 50.0 - 1.0).view(shape)
    }

    /// On a processor this kernel is not used, but there.
    #[test]
    fn a_batch_is_normalised_as_in_steps() {
        for kind in [Kind::Float, Kind::BFloat16, Kind::Half] {
            let x = TchTensor::new(noise(&[3, 5, 4, 6]).to_kind(kind));
            let [weight, bias] = [1.5, 0.3].map(|shift| TchTensor::new(noise(&[5]) + shift));
            let [output, mean, variance, inv_std] = train(&x, &weight, &bias, EPSILON);
            let exact = x.tensor.to_kind(Kind::Double);
            let over: &[i64] = &[0, 2, 3];
            let (expected_mean, biased) = (exact.mean_dim(over, true, None), exact.var_dim(over, false, true));
            let unbiased = exact.var_dim(over, true, false);
            let expected_inv_std = (&biased + EPSILON).rsqrt();
            let factor = |values: &TchTensor| values.tensor.to_kind(Kind::Double).view([1, 5, 1, 1]);
            let expected = (&exact - &expected_mean) * &expected_inv_std * factor(&weight) + factor(&bias);
            let is_near = |found: &TchTensor, expected: &Tensor, error: f64| {
                let difference = (found.tensor.to_kind(Kind::Double) - expected.view_as(&found.tensor)).abs().max();
                assert!(difference.double_value(&[]) <= error, "{kind:?}: {difference:?} > {error}");
            };
            assert!([&mean, &variance, &inv_std].iter().all(|values| values.tensor.kind() == Kind::Float));
            is_near(&mean, &expected_mean, 1e-6);
            is_near(&variance, &unbiased, 1e-6);
            is_near(&inv_std, &expected_inv_std, 1e-5);
            let rounding = if kind == Kind::Float {
                1e-5
            } else if kind == Kind::Half {
                4e-3
            } else {
                3e-2
            };
            is_near(&output, &expected, rounding);
        }
    }

    #[test]
    fn averages_of_several_layers_move_by_the_momentum_where_they_are() {
        let [running, batch] = [0, 1].map(|shift| [3, 8].map(|length| TchTensor::new(noise(&[length]) + shift)));
        let before = running.each_ref().map(|running| (running.tensor.copy(), running.tensor.data_ptr()));
        average(&running, &batch, 0.1);
        for ((average, (before, place)), batch) in running.iter().zip(before).zip(&batch) {
            let expected = before * 0.9 + &batch.tensor * 0.1;
            assert!(average.tensor.allclose(&expected, 1e-6, 1e-7, false) && average.tensor.data_ptr() == place);
        }
        let counts = [4, 7].map(|count: i64| TchTensor::new(Tensor::from_slice(&[count])));
        count(&counts);
        assert_eq!(counts.map(|count| count.tensor.int64_value(&[0])), [5, 8]);
    }
}
