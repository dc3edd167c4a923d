//! The manifest of a checkpoint: the list of its files with their sizes and SHA-256 sums.
//!
//! `manifest.json` is written last, so a directory without one is incomplete. The manifest also holds the sum of its
//! own canonical text, and any other text is refused, so every flipped bit is detected. This protects against failing
//! disks and truncated copies, not against forgery.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use kiln_system::file::{self, TEXT};
use kiln_system::{Error, Result, shown};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::MANIFEST;
use super::content::{Content, Entry};

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub step: usize,
    /// The epoch, from 0, that the next step belongs to.
    pub epoch: usize,
    pub accuracy: Option<f64>,
    /// Name and content of each file, such as `model.safetensors` and `state.json`.
    pub files: Vec<(String, Content)>,
}

/// The version of the format that this build writes and reads.
const FORMAT: u64 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u64,
    /// The version of Kiln that wrote the checkpoint.
    pub kiln: String,
    pub step: usize,
    /// The epoch, from 0, that the next step belongs to.
    pub epoch: usize,
    /// Validation accuracy of this state, if it was measured; as text, since readers of JSON may round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accuracy: Option<String>,
    pub files: BTreeMap<String, Entry>,
    sha256: String,
}

impl Manifest {
    /// The manifest of a snapshot whose files were written as `files`.
    pub fn of(snapshot: &Snapshot, files: BTreeMap<String, Entry>) -> Self {
        let Snapshot { step, epoch, accuracy, .. } = *snapshot;
        let accuracy = accuracy.map(|accuracy| accuracy.to_string());
        let kiln = env!("CARGO_PKG_VERSION").to_string();
        Self { format: FORMAT, kiln, step, epoch, accuracy, files, sha256: String::new() }.sealed()
    }

    pub fn accuracy(&self) -> Option<f64> {
        self.accuracy.as_ref()?.parse().ok()
    }

    /// The canonical text of `manifest.json`.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("strings and integers have a JSON form");
        text + "\n"
    }

    /// Reads the manifest of the checkpoint in the directory `dir`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the reason, but without a remedy, which the caller knows.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        if !path.exists() {
            return Err(Error::Checkpoint(format!("'{}' holds no {MANIFEST}: no complete checkpoint", shown(dir))));
        }
        let bytes = file::read(&path, TEXT).map_err(Error::io("read", &path))?;
        Self::parse(&bytes).map_err(|reason| Error::Checkpoint(format!("'{}' {reason}", shown(&path))))
    }

    pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let damaged = |e: serde_json::Error| format!("is damaged: {e}");
        let document: serde_json::Value = serde_json::from_slice(bytes).map_err(damaged)?;
        if let Some(format) = document.get("format").and_then(serde_json::Value::as_u64).filter(|f| *f != FORMAT) {
            let version = document.get("kiln").and_then(serde_json::Value::as_str).unwrap_or("of another version");
            let own = env!("CARGO_PKG_VERSION");
            return Err(format!(
                "is of format '{format}', written by kiln {version:?}; this is kiln {own}, which reads format {FORMAT}"
            ));
        }
        let manifest: Self = serde_json::from_value(document).map_err(damaged)?;
        if manifest.clone().sealed().to_json().as_bytes() != bytes {
            return Err("is damaged: its content does not match its own checksum".into());
        }
        match manifest.files.keys().find(|name| !is_plain(name)) {
            Some(name) => Err(format!("names the file '{name}', which is not a plain file name")),
            None => Ok(manifest),
        }
    }

    /// The manifest with the sum over its text with an empty sum.
    fn sealed(mut self) -> Self {
        self.sha256.clear();
        self.sha256 = format!("{:x}", Sha256::digest(self.to_json()));
        self
    }
}

impl Snapshot {
    /// Checks the names of its files.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if one has a directory, is the manifest's, or is that of two files.
    pub(super) fn check_names(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        match self.files.iter().find(|(name, _)| !is_plain(name) || !names.insert(name)) {
            None => Ok(()),
            Some((name, _)) => Err(Error::Checkpoint(format!(
                "a checkpoint cannot hold the file '{name}'; give each file a name of its own, without folders"
            ))),
        }
    }
}

fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let single = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    single && name != MANIFEST
}
