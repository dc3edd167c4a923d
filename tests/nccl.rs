//! NCCL, by the stand-in: what travels, what is said if it will not do, and what becomes of a run whose calls hang,
//! fail or break.
//!
//! `KILN_NCCL=/usr/lib/x86_64-linux-gnu/libnccl.so.2 cargo test --features tch,gloo -- nccl::conformance` holds the
//! real library against the same promises, on all CUDA devices of the machine.

mod conformance;
mod refusals;
mod runs;
mod sums;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use kiln_engine::parallel::nccl::{Library, Nccl};
use kiln_engine::parallel::{Processes, World};

use crate::command::{Workplace, errors, refused, succeeded};
use crate::engines::{Store, connected};
use crate::skipped::skip;
use crate::stand_in::*;
