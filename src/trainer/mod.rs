//! The story
mod burn_metrics;
pub mod learner;
