//! What the processes of a launch print: whole lines of all of them, each with the rank it came from.
//!
//! Every stream has a thread of its own that cuts it into lines and writes those at once, so that lines of two ranks
//! never mix. Bytes pass as they are, UTF-8 or not. Ranks that rewrite a line by carriage returns would wipe out each
//! other's on one terminal, so a carriage return ends a line here.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Where lines of several streams go.
pub type Sink = Arc<Mutex<dyn Write + Send>>;

/// Longer lines are cut, so that a stream without any line break cannot fill the memory.
const LONGEST_LINE: usize = 1 << 20;

/// Passes on `stream` to its end, each line behind `prefix`.
///
/// Returns the line that most likely tells why the process failed. A sink that refuses is written to no more, but
/// the stream is still read: a training outlives the pager that watched it.
pub fn pass_on(mut stream: impl Read, prefix: &str, sink: &Sink) -> Option<String> {
    let mut lines = Lines { prefix: prefix.into(), ..Lines::default() };
    let mut open = true;
    let mut chunk = vec![0; 1 << 16];
    loop {
        match stream.read(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(length) => lines.push(&chunk[..length]),
        }
        open = open && lines.write(sink);
    }
    lines.finish();
    if open {
        lines.write(sink);
    }
    lines.last_words.line()
}

/// Cuts a stream of bytes into lines and puts a prefix before each.
#[derive(Default)]
struct Lines {
    prefix: Vec<u8>,
    /// The start of a line whose end has not come yet.
    line: Vec<u8>,
    /// The last byte was a carriage return, so a line feed belongs to it.
    after_return: bool,
    /// Whole lines that are not written yet.
    ready: Vec<u8>,
    last_words: LastWords,
}

impl Lines {
    fn push(&mut self, mut bytes: &[u8]) {
        if !bytes.is_empty() && std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
            bytes = &bytes[1..];
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.line.extend_from_slice(&bytes[..end]);
            self.end_line();
            let pair = bytes[end] == b'\r' && bytes.get(end + 1) == Some(&b'\n');
            self.after_return = bytes[end..] == *b"\r";
            bytes = &bytes[end + 1 + usize::from(pair)..];
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > LONGEST_LINE {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        self.last_words.hear(&self.line);
        self.ready.extend_from_slice(&self.prefix);
        self.ready.append(&mut self.line);
        self.ready.push(b'\n');
    }

    /// The stream is over: a last line without a line break is a line too.
    fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
    }

    /// Whether the sink still takes lines. Drops those that it did not take.
    fn write(&mut self, sink: &Sink) -> bool {
        if self.ready.is_empty() {
            return true;
        }
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        let written = sink.write_all(&self.ready).and_then(|()| sink.flush());
        self.ready.clear();
        written.is_ok()
    }
}

/// The line that most likely says why a process failed: the last that begins with `train: `, or else, after a panic
/// or the word of some library, the last that is not empty.
#[derive(Default)]
struct LastWords {
    complaint: Option<Vec<u8>>,
    other: Option<Vec<u8>>,
}

impl LastWords {
    fn hear(&mut self, line: &[u8]) {
        // "note: run with RUST_BACKTRACE=1" ends every panic and explains none.
        let noise = line.trim_ascii().is_empty() || line.starts_with(b"note: ");
        match line.strip_prefix(b"train: ") {
            Some(complaint) => self.complaint = Some(complaint.into()),
            None if !noise => self.other = Some(line.into()),
            None => {}
        }
    }

    fn line(self) -> Option<String> {
        let line = self.complaint.or(self.other)?;
        Some(String::from_utf8_lossy(line.trim_ascii()).into_owned())
    }
}
