//! The starting point of a run of several processes.
//!
//! Only the first process uses the run's directory. It reads the checkpoint and sends it to the others, so that they
//! need no shared file system. In an elastic run, processes without a state get it from one that has it.

use std::path::PathBuf;

use kiln_engine::checkpoint::Loaded;
use kiln_engine::parallel::Processes;
use kiln_engine::parallel::{Key, Operation};
use kiln_system::{Error, Result};
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

pub(super) const KEY: Key = Key { step: 0, micro_batch: 0, operation: Operation::StartingPoint };

/// Receives the origin that process `root` sends.
pub(super) fn receive(processes: &Processes, key: Key, root: usize) -> Result<Origin> {
    decode(&processes.broadcast_to_all(key, root, None)?)
        .ok_or_else(|| Error::Training(format!("the checkpoint that rank {root} sent is damaged; start again")))
}

/// An origin without the content of its files, which follows in the same order.
#[derive(Serialize, Deserialize)]
struct Header {
    directory: PathBuf,
    session_seconds: f64,
    checkpoint: Option<Listing>,
}

#[derive(Serialize, Deserialize)]
struct Listing {
    path: PathBuf,
    step: usize,
    epoch: usize,
    files: Vec<(String, usize)>,
}

/// The length of the header, the header, the files.
pub(super) fn encode(origin: &Origin) -> Vec<u8> {
    let list = |loaded: &Loaded| Listing {
        path: loaded.path.clone(),
        step: loaded.step,
        epoch: loaded.epoch,
        files: loaded.files.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect(),
    };
    let header = Header {
        directory: origin.directory.clone(),
        session_seconds: origin.session_seconds,
        checkpoint: origin.checkpoint.as_ref().map(list),
    };
    let header = serde_json::to_vec(&header).expect("paths and numbers are always JSON");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    let files = origin.checkpoint.iter().flat_map(|loaded| loaded.files.values());
    files.for_each(|file| bytes.extend(file));
    bytes
}

fn decode(bytes: &[u8]) -> Option<Origin> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (header, mut rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let Header { directory, session_seconds, checkpoint } = serde_json::from_slice(header).ok()?;
    let mut file = |(name, length): (String, usize)| {
        let (file, behind) = rest.split_at_checked(length)?;
        rest = behind;
        Some((name, file.to_vec()))
    };
    let checkpoint = match checkpoint {
        None => None,
        Some(Listing { path, step, epoch, files }) => {
            Some(Loaded { path, step, epoch, files: files.into_iter().map(&mut file).collect::<Option<_>>()? })
        }
    };
    Some(Origin { directory, session_seconds, checkpoint, lock: None })
}
