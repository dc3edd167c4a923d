//! One integration binary; each module is about one promise of the product.

#[macro_use]
mod backends;
mod checkpoint;
mod config;
mod data;
mod metrics;
mod parity;
mod reference;
mod state;
