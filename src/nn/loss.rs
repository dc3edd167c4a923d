//! Softmax cross-entropy with label smoothing, and the rank of the target class.

use burn::tensor::activation::log_softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};

/// Cross-entropy of every sample, `[batch]`, from `logits` `[batch, classes]` and `targets` `[batch]`.
///
/// With smoothing e and C classes: `(1 - e) * -log p(target) + e / C * sum over classes of -log p` (Szegedy et al.
/// 2016).
pub fn cross_entropy<B: Backend>(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>, smoothing: f64) -> Tensor<B, 1> {
    let [batch, classes] = logits.dims();
    let log_probability = log_softmax(logits, 1);
    let of_target = log_probability.clone().gather(1, targets.reshape([batch, 1])).reshape([batch]);
    if smoothing == 0.0 {
        return of_target.neg();
    }
    let over_classes = log_probability.sum_dim(1).reshape([batch]);
    (of_target * (1.0 - smoothing) + over_classes * (smoothing / classes as f64)).neg()
}

/// The rank of the target among the logits of one sample, 0 for the largest. Of equal logits the lower class ranks
/// first.
pub fn rank_of_target(logits: &[f32], target: usize) -> usize {
    let value = logits[target];
    let before = |(class, logit): (usize, &f32)| *logit > value || (*logit == value && class < target);
    // A NaN ranks last, so it counts as wrong.
    if value.is_nan() { logits.len() } else { logits.iter().enumerate().filter(|entry| before(*entry)).count() }
}
