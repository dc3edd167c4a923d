//! ResNet-18 and what it is made of. Knows batches, losses and statistics; knows no replica, no device list, no file.
//!
//! Read `resnet.rs` for the network, `layers.rs` for its parts, `pass.rs` for how one forward pass treats batch
//! statistics, `step.rs` for the training and validation step that Burn's learner calls, `named.rs` for the names
//! under which weights are stored, `freeze.rs` for what keeps its values.

mod config;
mod flat;
mod freeze;
mod init;
mod layers;
mod loss;
mod named;
mod pass;
mod recognize;
mod resnet;
mod size;
mod step;

pub use config::{ModelConfig, Stem};
pub use flat::{Kernel, Which, flat, flat_gradients, kernels, with_flat};
pub use freeze::{HEAD, freeze};
pub use init::initialize;
pub use layers::{BatchNorm, Conv2d, for_evaluation};
pub use loss::{cross_entropy, rank_of_target};
pub use named::{load_state, parameter_names, state_dict, trained_parameters};
pub use pass::{BatchStatistics, Pass};
pub use recognize::recognize;
pub use resnet::{AbsorbStatistics, ResNet};
pub use size::{ParameterCount, activation_elements, count_parameters};
pub use step::{EvaluationBatch, EvaluationOutput, Fence, Prediction, Tally, TrainBatch, TrainStepOutput};
