//! Softmax cross-entropy with label smoothing, binary cross-entropy, the consistency of several views of an image, and
//! the ranks of the target classes.

use burn::tensor::activation::log_softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};

/// Cross-entropy of every sample, `[batch]`, from `logits` `[batch, classes]` and `targets` `[batch]`.
///
/// With smoothing e and C classes: `(1 - e) * -log p(target) + e / C * sum over classes of -log p` (Szegedy et al.
/// 2016).
pub fn cross_entropy<B: Backend>(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>, smoothing: f64) -> Tensor<B, 1> {
    let [batch, classes] = logits.dims();
    // Burn sums the last dimension on a CPU in an order that depends on the instruction set, any other in its own.
    let log_probability = log_softmax(logits.unsqueeze_dim::<3>(2), 1);
    let of_target = log_probability.clone().gather(1, targets.reshape([batch, 1, 1])).reshape([batch]);
    if smoothing == 0.0 {
        return of_target.neg();
    }
    let over_classes = log_probability.sum_dim(1).reshape([batch]);
    (of_target * (1.0 - smoothing) + over_classes * (smoothing / classes as f64)).neg()
}

/// The targets `[batch]` as probabilities of the classes, `[batch, classes]`: `1 - smoothing` of the target's class,
/// and `smoothing` spread over all.
pub fn smoothed<B: Backend>(targets: Tensor<B, 1, Int>, classes: usize, smoothing: f64) -> Tensor<B, 2> {
    let [batch] = targets.dims();
    let numbers = ordinals::<B>(classes, &targets.device()).expand([batch, classes]);
    let is_target = numbers.equal((targets + 1).reshape([batch, 1]).expand([batch, classes]));
    is_target.float() * (1.0 - smoothing) + smoothing / classes as f64
}

/// The mean over classes of the binary cross-entropy of every sample, `[batch]`, from `logits` and `targets`, both
/// `[batch, classes]`, the targets from 0 to 1; as `torch.nn.functional.binary_cross_entropy_with_logits`.
pub fn binary_cross_entropy<B: Backend>(logits: Tensor<B, 2>, targets: Tensor<B, 2>) -> Tensor<B, 1> {
    let [batch, classes] = logits.dims();
    // log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which cannot overflow.
    let softplus = logits.clone().clamp_min(0.0) + logits.clone().abs().neg().exp().log1p();
    let losses = softplus - logits * targets;
    // Another dimension than the last, as above.
    losses.unsqueeze_dim::<3>(2).sum_dim(1).reshape([batch]) / classes as f64
}

/// The loss of every image, `[images]`, from the `logits` `[views * images, classes]` of its views, one view after the
/// other: the cross-entropy of the first, and 12 times the Jensen-Shannon divergence of all (Hendrycks et al., 2020),
/// as timm's `JsdCrossEntropy`.
pub fn jsd_cross_entropy<B: Backend>(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>, smoothing: f64) -> Tensor<B, 1> {
    let ([rows, classes], [images]) = (logits.dims(), targets.dims());
    let of_first = cross_entropy(logits.clone().narrow(0, 0, images), targets, smoothing);
    // Another dimension than the last, as above.
    let log_probability = log_softmax(logits.reshape([rows / images, images, classes, 1]), 2);
    let probability = log_probability.clone().exp();
    let log_mixture = probability.clone().mean_dim(0).clamp(1e-7, 1.0).log();
    let divergence = (probability * (log_probability - log_mixture)).sum_dim(2).mean_dim(0);
    of_first + divergence.reshape([images]) * 12.0
}

/// The ranks of the targets `[batch]` among the `logits` `[batch, classes]` of each sample, `[batch]`, 0 for the
/// largest. Of equal logits the lower class ranks first; a NaN ranks below all classes, so it counts as wrong.
pub fn ranks_of_targets<B: Backend>(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>) -> Tensor<B, 1, Int> {
    let [batch, classes] = logits.dims();
    let targets = targets.reshape([batch, 1]);
    let own = logits.clone().gather(1, targets.clone());
    let is_lower = ordinals(classes, &logits.device()).lower_equal(targets);
    let is_before = logits.clone().greater(own.clone()).bool_or(logits.equal(own.clone()).bool_and(is_lower));
    (is_before.int().sum_dim(1) + own.is_nan().int() * classes as i64).reshape([batch])
}

/// The numbers from one to `count`, `[1, count]`, made on the device: `Tensor::arange` sends them there from the host.
pub fn ordinals<B: Backend>(count: usize, device: &B::Device) -> Tensor<B, 2, Int> {
    Tensor::ones([1, count], device).cumsum(1)
}
