//! The starting point of a run of several processes.
//!
//! Only the first process uses the run's directory. It reads the checkpoint and sends it to the others, so that they
//! need no shared file system. In an elastic run, processes without a state get it from one that has it.

use std::path::PathBuf;

use kiln_engine::checkpoint::Loaded;
use kiln_engine::parallel::Processes;
use kiln_engine::parallel::{Key, Operation};
use kiln_system::{Error, Result};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};
use serde::{Deserialize, Serialize};

use super::origin::{self, Origin};
use super::terminal::warn;
use crate::config::Config;

/// The origin of the run: decided by the first process, the same for all.
pub(super) fn origin(config: &Config, processes: Option<&Processes>) -> Result<Origin> {
    let decide = || origin::origin(config, &mut |warning| warn(&format!("warning: {warning}")));
    let origin = decided(processes, decide)?;
    std::fs::create_dir_all(&origin.directory).map_err(Error::io("create", &origin.directory))?;
    Ok(origin)
}

/// What the first process decides; the others receive it.
pub(super) fn decided(processes: Option<&Processes>, decide: impl FnOnce() -> Result<Origin>) -> Result<Origin> {
    match processes {
        None => decide(),
        Some(processes) if processes.rank() > 0 => receive(processes, KEY, 0),
        Some(processes) => {
            let origin = decide()?;
            processes.broadcast_to_all(KEY, 0, Some(encode(&origin)))?;
            Ok(origin)
        }
    }
}

/// The metadata of what is sent.
const HEADER: &str = "header";

pub(super) const KEY: Key = Key { step: 0, micro_batch: 0, operation: Operation::StartingPoint };

pub(super) fn receive(processes: &Processes, key: Key, root: usize) -> Result<Origin> {
    decode(&processes.broadcast_to_all(key, root, None)?)
        .ok_or_else(|| Error::Training(format!("the checkpoint that rank {root} sent is damaged; start again")))
}

/// An origin without the content of its files.
#[derive(Serialize, Deserialize)]
struct Header {
    directory: PathBuf,
    session_seconds: f64,
    /// Path, step and epoch.
    checkpoint: Option<(PathBuf, usize, usize)>,
}

/// A safetensors file with the header as metadata, and a tensor of bytes for each file.
pub(super) fn encode(origin: &Origin) -> Vec<u8> {
    let header = Header {
        directory: origin.directory.clone(),
        session_seconds: origin.session_seconds,
        checkpoint: origin.checkpoint.as_ref().map(|loaded| (loaded.path.clone(), loaded.step, loaded.epoch)),
    };
    let header = serde_json::to_string(&header).expect("paths and numbers are always JSON");
    let files = origin.checkpoint.iter().flat_map(|loaded| &loaded.files);
    let tensors = files.map(|(name, bytes)| (name, TensorView::new(Dtype::U8, vec![bytes.len()], bytes)));
    let tensors = tensors.map(|(name, tensor)| (name, tensor.expect("a byte is an element")));
    serialize(tensors, Some([(HEADER.to_string(), header)].into())).expect("bytes have an encoding")
}

fn decode(bytes: &[u8]) -> Option<Origin> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).ok()?;
    let header = serde_json::from_str(metadata.metadata().as_ref()?.get(HEADER)?).ok()?;
    let Header { directory, session_seconds, checkpoint } = header;
    let tensors = SafeTensors::deserialize(bytes).ok()?;
    let files = tensors.iter().map(|(name, file)| (name.to_string(), file.data().to_vec())).collect();
    let checkpoint = checkpoint.map(|(path, step, epoch)| Loaded { path, step, epoch, files });
    Some(Origin { directory, session_seconds, checkpoint, lock: None })
}
