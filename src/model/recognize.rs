//! Detects the network that a dictionary of weights belongs to.

use super::config::{Architecture, ModelConfig, Stem};
use crate::error::{Error, Result};
use crate::state::StateDict;

/// The stem, depth and width of the ResNet with the weights `state`, and its number of outputs; `origin` names their
/// source. [`crate::nn::load_state`] checks that every tensor is there.
///
/// # Errors
/// [`Error::Checkpoint`] if the first or the last layer is missing or has another shape.
pub fn recognize(state: &StateDict, origin: &str) -> Result<(ModelConfig, usize)> {
    let shape = |name: &str| state.get(name).map(|tensor| tensor.shape().to_vec()).unwrap_or_default();
    let stem = match shape("conv1.weight")[..] {
        [_, 3, 3, 3] => Some(Stem::Cifar),
        [_, 3, 7, 7] => Some(Stem::Imagenet),
        _ => None,
    };
    match (stem, shape("conv1.weight").first(), &shape("fc.weight")[..]) {
        (Some(stem), Some(&width), &[classes, features]) if features == 8 * width && width > 0 && classes > 0 => {
            let depth = Architecture::of_names(state.keys().map(String::as_str)).depth();
            let config = ModelConfig { stem, depth, width, num_classes: classes, ..ModelConfig::default() };
            Ok((config, classes))
        }
        _ => Err(Error::Checkpoint(format!(
            "{origin} holds no ResNet: its 'conv1.weight' must be [width, 3, 3, 3] or [width, 3, 7, 7] and its \
             'fc.weight' [classes, 8 x width]; give weights that train or torchvision wrote"
        ))),
    }
}
