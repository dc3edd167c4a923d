//! The engine, on every backend of the build, with toys and with ResNets; each module is about one promise.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]
#![allow(dead_code, reason = "the other binaries share helpers with this one")]

#[cfg(feature = "gloo")]
#[macro_use]
mod stand_in;
#[macro_use]
mod backends;

mod collective;
mod compiled;
#[cfg(feature = "wgpu")]
mod device_calls;
mod devices;
mod divergence;
mod drop_path;
#[cfg(feature = "gloo")]
mod engines;
mod failure;
mod files;
mod freeze;
#[cfg(feature = "tch")]
mod in_place;
mod mean_statistics;
#[cfg(feature = "gloo")]
mod mesh;
mod mixing;
#[cfg(feature = "gloo")]
mod nccl;
#[cfg(feature = "tch")]
mod noise;
mod optim;
mod overlap;
mod own_model;
mod parity;
mod placement;
mod precision;
mod probe;
mod python;
mod recomputation;
#[cfg(feature = "tch")]
mod recorded_steps;
mod reference;
mod sampler;
mod saving;
mod shards;
mod skipped;
mod small;
mod stages;
mod state;
mod stragglers;
mod stress;
mod toy;
mod until;
mod validation;
