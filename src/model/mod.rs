//! ResNet-18 and 34: the network, how it is recognised and how large it is, what its logits say. Knows no data set, no file.
//!
//! Read `resnet.rs` for the network, `prediction.rs` for what comes of its logits.

mod config;
mod prediction;
mod recognize;
mod resnet;
mod size;

pub use config::{Architecture, ModelConfig, Stem};
pub use prediction::{Hits, MixedIn, Prediction, hits};
pub use recognize::recognize;
pub use resnet::ResNet;
pub use size::{ParameterCount, activation_elements, count_parameters};
