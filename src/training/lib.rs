//! ResNets that classify images, on every backend that the build has.
//!
//! All that is generic over backends ends here: [`backend()`] chooses one at run time, a [`Backend`] answers for its
//! devices and makes a [`Network`], which trains, evaluates and predicts. Programs above this crate see these two
//! traits alone, so a change there instantiates nothing.
//!
//! - The network: [`ResNet`], its [`ModelConfig`], [`recognize`] for weights of unknown origin,
//!   [`activation_elements`].
//! - The task: [`Classification`], images to losses, counts and [`Prediction`]s.
//!
//! This crate knows no command line, no layers of settings, no terminal and no report.

mod backend;
mod classification;
mod model;
mod network;

pub use backend::{Backend, backend, backend_name, default_backend, is_compiled, prepare_process};
pub use classification::{Classification, Images, Logits};
pub use model::{
    Architecture, Bottleneck, Loss, MixedIn, ModelConfig, ParameterCount, Prediction, ResNet, Stem, TOP1, TOP5,
    Through, Units, activation_elements, count_parameters, hits, predictions, recognize,
};
pub use network::{Network, Training};
