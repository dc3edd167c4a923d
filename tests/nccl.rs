//! NCCL, by the stand-in: what travels.
//!
//! `KILN_NCCL=/usr/lib/x86_64-linux-gnu/libnccl.so.2 cargo test --features tch,gloo -- nccl::conformance` holds the
//! real library against the same promises, on all CUDA devices of the machine.

mod conformance;
mod sums;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use kiln_engine::parallel::nccl::{Library, Nccl};
use kiln_engine::parallel::{Processes, World};

use crate::engines::connected;
use crate::skipped::skip;
use crate::stand_in::*;
