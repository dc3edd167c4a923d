//! ResNets: the network, its architecture and recognition from weights, its size, losses and predictions. Knows no data
//! set and no file.
//!
//! Start with `resnet.rs`; `prediction.rs` evaluates the logits.

mod architecture;
mod config;
mod loss;
mod prediction;
mod resnet;
mod size;

pub use architecture::{Architecture, Bottleneck};
pub use config::{ModelConfig, Stem, recognize};
pub use loss::Loss;
pub use prediction::{MixedIn, Prediction, TOP1, TOP5, hits, predictions};
pub use resnet::{ResNet, Through, Units};
pub use size::{ParameterCount, activation_elements, count_parameters};
