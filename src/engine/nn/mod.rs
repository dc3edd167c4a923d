//! Parts of networks: layers with synchronisation and mixed precision, initial weights, losses, tensor names. Knows no
//! architecture, replica or file.
//!
//! `layers.rs` holds the layers, `parts.rs` batches in parts with statistics of their own, `context.rs` the settings of
//! a forward pass, `running.rs` averages over passes, `named.rs` the names of stored weights, `flat.rs` the engine's
//! view of a model, `freeze.rs` the freezing of weights.

mod context;
mod flat;
mod freeze;
mod init;
mod layers;
mod loss;
mod named;
mod parts;
mod running;

pub use context::{BatchStatistics, ForwardContext};
pub use flat::{
    Kernel, TensorSet, counts, flat, flat_gradients, found_gradients, gradients_of, kernel_weights, kernels, only,
    with_flat, with_own_memory,
};
pub use freeze::{HEAD, freeze, is_frozen};
pub use init::initialize;
pub use layers::{AUXILIARY, BatchNorm, Conv2d, linear};
pub use loss::ordinals;
pub use loss::{binary_cross_entropy, cross_entropy, jsd_cross_entropy, ranks_of_targets, smoothed};
pub use named::{
    Weights, float_tensors, load_state, parameter_names, part_of_state, state_dict, trained_parameters, with_named_ids,
};
pub use running::update_running_statistics;
