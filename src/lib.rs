//! Kiln
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod error;
pub mod metrics;
pub mod model;
pub mod ops;
pub mod optim;
pub mod parallel;
pub mod state;
pub mod stop;
pub mod trainer;
