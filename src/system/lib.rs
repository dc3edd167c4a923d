//! What a command shares with the operating system: errors and exit codes, signals, and files within bounds.
//!
//! - [`Error`]: the one line in which a command says what went wrong, and its exit code.
//! - [`stop`]: requests to end a run, by a signal or a time limit, and how a process ends at once.
//! - [`mod@file`]: reads files of unknown origin, none above a limit.
//! - [`foreign`], [`functions!`]: libraries that are loaded at run time.
//! - [`text`], [`with_defaults!`]: types that are text in files, and structs with their defaults.
//!
//! This crate knows neither tensors nor networks, runs or settings.

mod defaults;
mod error;
pub mod file;
pub mod foreign;
pub mod stop;
pub mod text;

pub use error::{Error, Result, printable, quoted, shown};
