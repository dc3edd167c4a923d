//! The secret that the processes of one job share; a process that knows it may join.
//!
//! It comes from a file that only its owner may read, from the environment, from the user's file on this machine, or
//! from the launcher, which draws one for its children. It never appears in a message, a log or a `Debug` output;
//! [`tls`](super::tls) proves it.
//!
//! Limits: an attacker who connects to the port sees a public key that is derived from the secret, and can try secrets
//! against it offline. A secret drawn by Kiln has 256 bits and cannot be found that way. A secret chosen by a person
//! goes through Argon2id first (RFC 9106, its second recommendation: 64 MiB, three passes, four lanes), so that every
//! attempt costs that much; a secret in a list of passwords is found nevertheless. The salt is the same for all jobs,
//! because the service must be able to tell a process of another job that the secret is right and the job is wrong.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use argon2::{Algorithm, Argon2, Params, Version};
use kiln_system::{Error, Result, shown};

/// Shorter secrets could be guessed.
const LEAST: usize = 16;
/// As could secrets of fewer different bytes.
const LEAST_DIFFERENT: usize = 8;
/// A longer file is probably the wrong file.
const MOST: u64 = 4096;
/// The prefix of a secret drawn by Kiln; 64 hexadecimal digits follow.
const DRAWN: &str = "kiln-";
const DIGITS: usize = 64;
const SALT: &[u8] = b"kiln job secret";

/// The shared secret of a job, or none.
#[derive(Clone)]
pub struct Secret {
    text: String,
    key: Vec<u8>,
}

impl Secret {
    /// No secret: any process that reaches the port may join.
    pub fn none() -> Self {
        Self { text: String::new(), key: Vec::new() }
    }

    /// Reads a secret; white space around it is ignored. One that was not drawn by [`random`](Self::random) takes about
    /// a tenth of a second and 64 MiB of memory.
    ///
    /// # Errors
    /// A usage error for a secret that is too short or repetitive. Other weaknesses are not detected.
    pub fn from_text(text: &str) -> Result<Self> {
        let text = text.trim();
        check(text)?;
        let key = if is_drawn(text) { text.as_bytes().to_vec() } else { stretch(text)? };
        Ok(Self { text: text.into(), key })
    }

    /// Reads the secret from a text file. A usage error if others than its owner may read or change the file.
    pub fn from_file(path: &Path) -> Result<Self> {
        let refuse = |why: String| Error::usage(format!("cannot use '{}' as --job-secret-file: {why}", shown(path)));
        let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
        Self::from_open_file(file, path, refuse)
    }

    /// `refuse` adds the purpose of the file to an error.
    pub(super) fn from_open_file(file: File, path: &Path, refuse: impl Fn(String) -> Error) -> Result<Self> {
        // Metadata of the open file, so that it cannot be replaced between the check and the reading.
        let metadata = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_file() {
            return Err(refuse("it is not a file".into()));
        }
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let path = shown(path);
            return Err(refuse(format!("other users may open it (mode '{mode:03o}'); run: chmod 600 '{path}'")));
        }
        let mut text = String::new();
        file.take(MOST + 1).read_to_string(&mut text).map_err(|error| refuse(error.to_string()))?;
        if text.len() as u64 > MOST {
            return Err(refuse(format!("it is longer than {MOST} bytes; give the file that holds only the secret")));
        }
        Self::from_text(&text)
    }

    /// A new secret: 32 bytes of the system's randomness, as text.
    ///
    /// # Panics
    /// If the system has no source of randomness.
    pub fn random() -> Self {
        let digits = random_bytes::<32>().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = format!("{DRAWN}{digits}");
        Self { key: text.clone().into_bytes(), text }
    }

    /// The secret as text, for a child process. It must not appear in command lines or logs.
    pub fn to_text(&self) -> &str {
        &self.text
    }

    pub fn is_none(&self) -> bool {
        self.text.is_empty()
    }

    /// What the key of the job is derived from; empty without a secret.
    pub(super) fn as_key(&self) -> &[u8] {
        &self.key
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_none() { "Secret(none)" } else { "Secret(..)" })
    }
}

/// Detects mistakes only; how easily a secret can be guessed is unknown.
fn check(text: &str) -> Result<()> {
    let remedy = "write one with: train secret FILE";
    let (bytes, length) = (text.as_bytes(), text.len());
    if length < LEAST {
        let rule = format!("the job's secret has '{length}' bytes, but needs at least {LEAST}; {remedy}");
        return Err(Error::usage(rule));
    }
    let different = bytes.iter().collect::<BTreeSet<_>>().len();
    let repeats = |period: usize| bytes[period..] == bytes[..length - period];
    if different < LEAST_DIFFERENT || (1..=length / 2).any(repeats) {
        return Err(Error::usage(format!(
            "the job's secret is repetitive: it needs {LEAST_DIFFERENT} different characters and no pattern; {remedy}"
        )));
    }
    Ok(())
}

fn is_drawn(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix(DRAWN).is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

fn stretch(text: &str) -> Result<Vec<u8>> {
    let params = Params::new(1 << 16, 3, 4, Some(32)).expect("the recommended parameters are valid");
    let mut key = vec![0; 32];
    let stretched =
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params).hash_password_into(text.as_bytes(), SALT, &mut key);
    stretched.map_err(|error| {
        Error::usage(format!("cannot use the job's secret: {error}; write one with: train secret FILE"))
    })?;
    Ok(key)
}

/// Bytes that were never used before.
pub(super) fn random_bytes<const LENGTH: usize>() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes).expect("the operating system has randomness for every process");
    bytes
}
