//! The error type of all rooms.
//!
//! Every message is one line: what went wrong, where, the rule and the remedy with the exact flag. It is lower case,
//! without a final full stop, and quotes the offending value. Only `main` prints it.

use std::path::{Path, PathBuf};

/// What can end a command, and with which exit code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line or a configuration layer is wrong: all errors at once, one line each. Exit code 2.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// Input data is missing, damaged, or not what the configuration says.
    #[error("{0}")]
    Data(String),
    /// An error of the file system; `action` is an infinitive, such as "write".
    #[error("cannot {action} '{}': {source}{}", path.display(), remedy(source))]
    Io {
        /// The action, as in "cannot *read* 'x'".
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A checkpoint or a weight file is damaged, incomplete or belongs to another run.
    #[error("{0}")]
    Checkpoint(String),
    /// Training failed: a replica died, hung, or got a number that is not finite.
    #[error("{0}")]
    Training(String),
    /// A minority of the replicas does not hold what the others do: a device computed or remembered a wrong number.
    #[error("{0}")]
    Difference(String),
    /// Another process of the run died, hung, or reported a failure. Exit code 75: try again.
    #[error("{0}")]
    PeerLost(String),
    /// Another run has what this one needs. Exit code 75: try again.
    #[error("{0}")]
    Busy(String),
}

/// The result of anything that can end a command.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A usage error with a single line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage(vec![message.into()])
    }

    /// Wraps a file-system error; meant for `map_err(Error::io("read", path))`.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// The exit code of the process: 2 for wrong usage, 75 (`EX_TEMPFAIL` of sysexits.h) where another attempt may
    /// succeed, 1 for any other failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::PeerLost(_) | Self::Busy(_) => 75,
            _ => 1,
        }
    }
}

/// The remedy for a full disk.
fn remedy(refusal: &std::io::Error) -> &'static str {
    match refusal.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; make room there, then go on with --resume, or start again if no checkpoint was written before"
        }
        _ => "",
    }
}
