//! Runs over NCCL, by the stand-in: what is said if it will not do, and what becomes of a run whose calls hang, fail or
//! break.

mod refusals;
mod runs;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use kiln_engine::parallel::nccl::{Library, Nccl};

use crate::command::{Workplace, errors, refused, succeeded};
use crate::engines::Store;
use crate::skipped::skip;
use crate::stand_in::{LIMIT, over, stand_in};
