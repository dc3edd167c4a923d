//! From gradients to new weights: update rules, the learning-rate schedule, loss scaling, clipping, weight averaging.
//!
//! Works on flat tensors in declaration order; knows no model, replica or thread.

mod arenas;
mod average;
mod clip;
mod config;
mod loss_scale;
mod optimizer;
mod parameter;
mod plateau;
mod rules;
mod schedule;

pub use arenas::Arenas;
pub use average::{AveragedSteps, WeightAverage};
pub use clip::{clip_factor, clip_factor_there, global_norm, norms};
pub use config::{
    CountedFrom, LossKind, LrScaling, OptimConfig, OptimizerKind, ScheduleConfig, ScheduleInterval, ScheduleKind,
    WarmupShape,
};
pub use loss_scale::LossScale;
pub use optimizer::{Optimizer, initial_state, tensor_of};
pub use parameter::Parameter;
pub use plateau::Plateau;
pub use schedule::Schedule;
