//! What networks are made of: layers that synchronise and mix precision, initial weights, losses, names. Knows no
//! architecture, no replica, no file.
//!
//! Read `layers.rs` for the parts, `context.rs` for how one forward pass treats batch statistics, `named.rs` for the names
//! under which weights are stored, `flat.rs` for how the engine sees them, `freeze.rs` for what keeps its values.

mod context;
mod flat;
mod freeze;
mod init;
mod layers;
mod loss;
mod named;

pub use context::{BatchStatistics, ForwardContext};
pub use flat::{Kernel, Which, flat, flat_gradients, gradients_of, kernels, with_flat};
pub use freeze::{HEAD, freeze};
pub use init::initialize;
pub use layers::{BatchNorm, Conv2d, for_evaluation, linear, update_running_statistics};
pub use loss::{cross_entropy, rank_of_target};
pub(crate) use named::Path;
pub use named::{load_state, parameter_names, state_dict, trained_parameters, with_named_ids};
