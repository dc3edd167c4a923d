//! One integration binary; each module is about one promise of the product.

#![allow(missing_docs, reason = "a test's name is its documentation")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[macro_use]
mod backends;
mod checkpoint;
mod config;
mod data;
mod metrics;
mod optim;
mod parity;
mod reference;
mod state;
