//! ResNet-18 and ResNet-34: the network, its recognition from weights, its size, losses and predictions. Knows no data
//! set and no file.
//!
//! Start with `resnet.rs`; `prediction.rs` evaluates the logits.

mod config;
mod prediction;
mod resnet;
mod size;

pub use config::{Architecture, ModelConfig, Stem, check_blocks, recognize};
pub use prediction::{Hits, MixedIn, Prediction, hits, predictions};
pub use resnet::{ResNet, Through, Units};
pub use size::{ParameterCount, activation_elements, count_parameters};
