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
    let mut lines = Lines { prefix, ..Lines::default() };
    let mut open = true;
    let mut chunk = vec![0; 1 << 16];
    loop {
        let length = match stream.read(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        lines.push(&chunk[..length]);
        if length == 0 && !lines.line.is_empty() {
            lines.end_line();
        }
        if open && !lines.ready.is_empty() {
            let mut sink = sink.lock();
            open = sink.write_all(&lines.ready).and_then(|()| sink.flush()).is_ok();
        }
        lines.ready.clear();
        if length == 0 {
            let line = lines.own.or(lines.other)?;
            return Some(String::from_utf8_lossy(line.trim_ascii()).into_owned());
        }
    }
}

/// Splits a stream of bytes into lines and puts a prefix before each.
#[derive(Default)]
struct Lines<'a> {
    prefix: &'a str,
    /// The start of a line without its end.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, to which a line feed belongs.
    after_return: bool,
    ready: Vec<u8>,
    /// The last line that begins with `train: `, which most likely says why the process failed.
    own: Option<Vec<u8>>,
    /// The last other one that is not empty: after a panic, for example, it does.
    other: Option<Vec<u8>>,
}

impl Lines<'_> {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' if self.after_return => {}
                b'\n' | b'\r' => self.end_line(),
                _ => self.line.push(*byte),
            }
            self.after_return = *byte == b'\r';
        }
        if self.line.len() > LONGEST_LINE {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        // "note: run with RUST_BACKTRACE=1" is the last line of every panic.
        let noise = self.line.trim_ascii().is_empty() || self.line.starts_with(b"note: ");
        match self.line.strip_prefix(b"train: ") {
            Some(error) => self.own = Some(error.into()),
            None if !noise => self.other = Some(self.line.clone()),
            None => {}
        }
        self.ready.extend_from_slice(self.prefix.as_bytes());
        self.ready.append(&mut self.line);
        self.ready.push(b'\n');
    }
}
