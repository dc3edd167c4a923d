//! The error type of all rooms.
//!
//! Every message is one line: what went wrong, where, the rule and the remedy with the exact flag. It is lower case,
//! without a final full stop, and quotes the offending value. Only `main` prints it.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What can end a command, and with which exit code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line or a configuration layer is wrong: all errors at once, one line each. Exit code 2.
    #[error("{}", .0.iter().map(|message| printable(message)).collect::<Vec<_>>().join("\n"))]
    Usage(Vec<String>),
    /// Input data is missing, damaged, or not what the configuration says.
    #[error("{}", printable(.0))]
    Data(String),
    /// An error of the file system; `action` is an infinitive, such as "write".
    #[error("cannot {action} '{}': {source}{}", printable(&shown(path)), remedy(source))]
    Io {
        /// The action, as in "cannot *read* 'x'".
        action: &'static str,
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A checkpoint or a weight file is damaged, incomplete or belongs to another run.
    #[error("{}", printable(.0))]
    Checkpoint(String),
    /// Training failed: a replica died, hung, or got a number that is not finite.
    #[error("{}", printable(.0))]
    Training(String),
    /// A minority of the replicas does not hold what the others do: a device computed or remembered a wrong number.
    #[error("{}", printable(.0))]
    Difference(String),
    /// Another process of the run died, hung, or reported a failure. Exit code 75: try again.
    #[error("{}", printable(.0))]
    PeerLost(String),
    /// Another run has what this one needs. Exit code 75: try again.
    #[error("{}", printable(.0))]
    Busy(String),
    /// A signal ended the command, which has nothing more to say. Exit code of the signal.
    #[error("")]
    Stopped(u8),
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

    /// The error of a training, which goes on when there is room on the disk again.
    pub fn of_training(self) -> Self {
        match &self {
            Self::Io { source, .. } if !remedy(source).is_empty() => Self::Data(format!(
                "{self}, then go on with --resume, or start again if no checkpoint was written before"
            )),
            _ => self,
        }
    }

    /// The exit code of the process: 2 for wrong usage, 75 (`EX_TEMPFAIL` of sysexits.h) where another attempt may
    /// succeed, 1 for any other failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::PeerLost(_) | Self::Busy(_) => 75,
            Self::Stopped(code) => *code,
            _ => 1,
        }
    }
}

/// The name of a file as text: bytes that are not UTF-8 become `\xe9`. For a terminal it must be `printable` as well.
pub fn shown(name: impl AsRef<OsStr>) -> String {
    let chunks = name.as_ref().as_encoded_bytes().utf8_chunks();
    let escaped = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    chunks.map(|chunk| chunk.valid().to_owned() + &escaped(chunk.invalid())).collect()
}

/// A text of unknown origin, such as the name of a file or a class, as one line for a terminal: characters that a
/// terminal would obey are escaped, in a form that JSON and TOML allow in strings too.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_command = |letter: char| letter.is_control() || DIRECTIONS.contains(&letter);
    if !text.contains(is_command) {
        return text.into();
    }
    let escaped = |letter: char| match letter {
        '\n' | '\r' | '\t' => letter.escape_default().to_string(),
        _ if is_command(letter) => format!("\\u{:04x}", u32::from(letter)),
        _ => letter.into(),
    };
    text.chars().map(escaped).collect()
}

/// A name from a file, quoted for a message: escaped, and cut after 80 characters.
pub fn quoted(name: &str) -> String {
    let mut characters = name.chars();
    let start: String = characters.by_ref().take(80).flat_map(char::escape_debug).collect();
    format!("'{start}{}'", if characters.next().is_some() { "..." } else { "" })
}

/// Line separators, and marks that reverse the text after them.
const DIRECTIONS: [char; 11] = [
    '\u{2028}', '\u{2029}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}',
    '\u{2068}', '\u{2069}',
];

/// The remedy for a disk that is full or has a limit.
fn remedy(refusal: &std::io::Error) -> &'static str {
    match refusal.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => "; make room there",
        // Without a code of the system it is a limit of Kiln's own for what it reads.
        std::io::ErrorKind::FileTooLarge if refusal.raw_os_error().is_some() => "; allow larger files (ulimit -f)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_it_quotes() {
        let data = Error::Data("'a\nb\u{7}ü' is of no split".into());
        assert_eq!(data.to_string(), r"'a\nb\u0007ü' is of no split");
        let source = || std::io::Error::from(std::io::ErrorKind::NotFound);
        assert!(Error::io("read", "a\rb")(source()).to_string().starts_with(r"cannot read 'a\rb'"));
        assert_eq!(printable("\u{1b}[2J\u{9b}A\u{202e}b é"), r"\u001b[2J\u009bA\u202eb é");
        let name = OsStr::from_bytes(b"caf\xe9 \xc3\xa9.jpg");
        assert_eq!(shown(name), r"caf\xe9 é.jpg");
        assert!(Error::io("read", name)(source()).to_string().starts_with(r"cannot read 'caf\xe9 é.jpg'"));
        assert_eq!(Error::Usage(vec!["one\ntwo".into(), "three".into()]).to_string(), "one\\ntwo\nthree");
    }
}
