//! The secret that the processes of one job share; whoever knows it may join.
//!
//! It comes from a file that only its owner may read, from the environment, or is drawn anew by the launcher for its
//! children. It never appears in a message, a log or a `Debug` output; how it is proven is left to
//! [`handshake`](super::handshake).

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::error::{Error, Result};

/// Shorter secrets could be guessed.
const LEAST: usize = 16;
/// A longer file is not a secret, but a mistaken path.
const MOST: u64 = 4096;

/// The shared secret of a job, or none.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// No secret: whoever reaches the port may join.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// The secret as people write it; white space around it does not count. A usage error if shorter than 16 bytes.
    pub fn from_text(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() < LEAST {
            let length = text.len();
            return Err(Error::usage(format!(
                "the job's secret has '{length}' bytes, but needs at least {LEAST}; make one with: openssl rand -hex 32"
            )));
        }
        Ok(Self(text.as_bytes().to_vec()))
    }

    /// Reads the secret from a text file. A usage error if others than its owner may read or change the file.
    pub fn from_file(path: &Path) -> Result<Self> {
        let refuse = |why: String| Error::usage(format!("cannot use '{}' as --job-secret-file: {why}", path.display()));
        let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
        // Asked of the open file, so that it cannot be exchanged between the question and the reading.
        let metadata = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_file() {
            return Err(refuse("it is not a file".into()));
        }
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let path = path.display();
            return Err(refuse(format!("others may open it (mode '{mode:03o}'); run: chmod 600 '{path}'")));
        }
        let mut text = String::new();
        file.take(MOST + 1).read_to_string(&mut text).map_err(|error| refuse(error.to_string()))?;
        if text.len() as u64 > MOST {
            return Err(refuse(format!("it is longer than {MOST} bytes; give the file that holds only the secret")));
        }
        Self::from_text(&text)
    }

    /// A new secret that nobody can guess: 32 bytes of the system's randomness, as 64 hexadecimal digits.
    ///
    /// # Panics
    /// If the system has no randomness to give.
    pub fn random() -> Self {
        let digits = nonce().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Self(digits.into_bytes())
    }

    /// The secret itself, to hand it to a child process. Keep it out of command lines and logs.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// Whether there is no secret.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// The key of the handshake's proofs; empty without a secret, so that there is one path through the code.
    pub(super) fn as_key(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_none() { "Secret(none)" } else { "Secret(..)" })
    }
}

/// 32 bytes that were never used before.
pub(super) fn nonce() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the operating system has randomness for every process");
    bytes
}
