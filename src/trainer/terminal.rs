//! Words to standard output, where a reader that has gone away is no reason to stop.

use std::io::Write;

/// Prints `text` and a line break.
pub(super) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()));
}
