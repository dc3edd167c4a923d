//! Networks and what the application makes of them: files of weights, plans, presets, views of a batch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]
#![allow(dead_code, reason = "the other binaries share helpers with this one")]

#[cfg(feature = "gloo")]
#[macro_use]
mod stand_in;
#[macro_use]
mod backends;

mod command;
mod compiled;
#[cfg(feature = "gloo")]
mod engines;
mod files;
mod logits;
#[cfg(feature = "flex")]
mod networks;
mod planning;
mod presets;
mod python;
mod reference;
mod skipped;
mod small;
mod toy;
mod until;
#[cfg(feature = "flex")]
mod views;
