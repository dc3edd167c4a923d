//! Losses, predicted classes and accuracy from a network's logits.

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use kiln_engine::nn::{binary_cross_entropy, cross_entropy, jsd_cross_entropy, ordinals, ranks_of_targets, smoothed};
use kiln_engine::optim::LossKind;
use kiln_ops::TrainBackend;

use super::loss::Loss;
use super::resnet::ResNet;

/// The classes mixed into a batch of images by mixup or CutMix, `[batch]`, and the share of the images' own classes, 0
/// to 1.
pub type MixedIn<B> = (Tensor<B, 1, Int>, f64);

impl<B: TrainBackend> ResNet<B> {
    /// The training loss of every image, `[batch]`, from the logits `[batch, classes]`. There may be several views of
    /// the images, one after the other: the loss of an image is then the mean over its views, or that of
    /// [`jsd_cross_entropy`].
    pub fn losses_of(
        &self,
        logits: Tensor<B, 2>,
        labels: Tensor<B, 1, Int>,
        mixed: Option<MixedIn<B>>,
    ) -> Tensor<B, 1> {
        let Loss { kind, smoothing, threshold } = self.loss;
        let ([rows, _], [images]) = (logits.dims(), labels.dims());
        if rows > images && kind != LossKind::Jsd {
            let views = rows / images;
            let losses = self.losses_of(logits, labels.repeat_dim(0, views), None);
            return losses.reshape([views, images]).mean_dim(0).reshape([images]);
        }
        let targets = |labels| smoothed(labels, logits.dims()[1], smoothing);
        let targets = match (kind, mixed) {
            (LossKind::CrossEntropy, mixed) => {
                let against = |labels| cross_entropy(logits.clone(), labels, smoothing);
                let own = against(labels);
                return match mixed {
                    // Linear in the target.
                    Some((others, share)) => own * share + against(others) * (1.0 - share),
                    None => own,
                };
            }
            (LossKind::Bce, Some((others, share))) => targets(labels) * share + targets(others) * (1.0 - share),
            (LossKind::Bce, None) => targets(labels),
            (LossKind::Jsd, _) => return jsd_cross_entropy(logits, labels, smoothing),
        };
        let targets = if threshold > 0.0 { targets.greater_elem(threshold).float() } else { targets };
        binary_cross_entropy(logits, targets)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    pub class: u32,
    pub confidence: f32,
}

impl Prediction {
    /// Those of several images, from the values of [`predictions`].
    pub fn from_values(values: &[f64]) -> Vec<Self> {
        values.chunks_exact(2).map(|of| Self { class: of[0] as u32, confidence: of[1] as f32 }).collect()
    }
}

/// The class with the largest logit and its probability, `[batch, 2]`, from `logits` `[batch, classes]`. Of equal
/// logits it is the lowest class; a NaN is never the largest.
pub fn predictions<B: Backend>(logits: Tensor<B, 2>) -> Tensor<B, 2> {
    let [batch, classes] = logits.dims();
    let numbers = logits.clone().mask_fill(logits.clone().is_nan(), f32::NEG_INFINITY);
    let largest = numbers.clone().max_dim(1);
    let order = (ordinals(classes, &logits.device()).float() - 1.0).expand([batch, classes]);
    let class = order.mask_fill(numbers.not_equal(largest.clone().expand([batch, classes])), classes as f32).min_dim(1);
    let confidence = (logits - largest).exp().sum_dim(1).recip();
    Tensor::cat(vec![class, confidence], 1)
}

/// How many images have the largest logit at their class, and how many have one of the five largest, `[2]`. `logits`
/// are `[batch, classes]`, `labels` `[batch]`.
pub fn hits<B: Backend>(logits: Tensor<B, 2>, labels: Tensor<B, 1, Int>) -> Tensor<B, 1> {
    let ranks = ranks_of_targets(logits, labels);
    Tensor::cat([1, 5].map(|places| ranks.clone().lower_elem(places).int().sum()).into(), 0).float()
}

/// Where [`hits`] counts images for which the true class has the largest logit.
pub const TOP1: usize = 0;
/// Where it counts those for which the true class is among the five largest logits.
pub const TOP5: usize = 1;
