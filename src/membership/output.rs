//! Forwards what the processes of a launch print: whole lines, each with the rank of its process.
//!
//! One thread per stream splits it into lines and writes each of them at once, so that lines of two ranks never mix.
//! Bytes are not changed, UTF-8 or not. A carriage return ends a line too: on one terminal, ranks that rewrite their
//! line would erase each other's.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;

pub type Sink = Arc<Mutex<dyn Write + Send>>;

/// Longer lines are cut, so that a stream without any line break cannot fill the memory.
const LONGEST_LINE: usize = 1 << 20;

/// Forwards `stream` until it ends, each line after `prefix`. Returns the line that most likely says why the process
/// failed. After a write error the stream is still read, so that a closed pager does not stop the training.
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
        lines.ready.clear();
    }
    lines.finish();
    if open {
        lines.write(sink);
    }
    lines.error_line.text()
}

/// Splits a stream of bytes into lines and puts a prefix before each.
#[derive(Default)]
struct Lines {
    prefix: Vec<u8>,
    /// The start of a line without its end.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, to which a line feed belongs.
    after_return: bool,
    ready: Vec<u8>,
    error_line: ErrorLine,
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
        self.error_line.consider(&self.line);
        self.ready.extend_from_slice(&self.prefix);
        self.ready.append(&mut self.line);
        self.ready.push(b'\n');
    }

    /// Ends a last line without a line break.
    fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
    }

    /// Returns false after a write error; the lines are dropped in any case.
    fn write(&mut self, sink: &Sink) -> bool {
        if self.ready.is_empty() {
            return true;
        }
        let mut sink = sink.lock();
        sink.write_all(&self.ready).and_then(|()| sink.flush()).is_ok()
    }
}

/// The line that most likely says why a process failed: the last one that begins with `train: `, or else (after a
/// panic, for example) the last one that is not empty.
#[derive(Default)]
struct ErrorLine {
    own: Option<Vec<u8>>,
    other: Option<Vec<u8>>,
}

impl ErrorLine {
    fn consider(&mut self, line: &[u8]) {
        // "note: run with RUST_BACKTRACE=1" is the last line of every panic.
        let noise = line.trim_ascii().is_empty() || line.starts_with(b"note: ");
        match line.strip_prefix(b"train: ") {
            Some(error) => self.own = Some(error.into()),
            None if !noise => self.other = Some(line.into()),
            None => {}
        }
    }

    fn text(self) -> Option<String> {
        let line = self.own.or(self.other)?;
        Some(String::from_utf8_lossy(line.trim_ascii()).into_owned())
    }
}
