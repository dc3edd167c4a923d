//! The output of a run on the terminal.

use std::io::{Write, stderr, stdout};

use kiln_system::{Error, Result, printable};

use crate::config::ProgressKind;
use crate::metrics::{screen, terminal};

const HAS_DASHBOARD: bool = cfg!(feature = "tui");

/// How `--progress` is to be shown here: never [`ProgressKind::Auto`].
pub(super) fn display(kind: ProgressKind) -> Result<ProgressKind> {
    match kind {
        ProgressKind::Auto if HAS_DASHBOARD && terminal::is_usable() => Ok(ProgressKind::Tui),
        ProgressKind::Auto => Ok(ProgressKind::Plain),
        ProgressKind::Tui if !HAS_DASHBOARD => {
            Err(Error::usage("--progress tui is not in this build; build with --features tui, or use --progress bar"))
        }
        ProgressKind::Tui if !terminal::is_usable() => Err(Error::usage(
            "--progress tui needs a foreground terminal for input and output, with TERM other than 'dumb'; use \
             --progress plain",
        )),
        kind => Ok(kind),
    }
}

/// Prints the lines of `text`, or keeps them for a dashboard's end; what a terminal would obey is escaped. A name in
/// `text` that may hold line breaks must be `printable` already. Write errors are ignored: a reader may have gone.
pub fn say(text: &str) {
    let text = text.trim_end_matches('\n').split('\n').map(printable).collect::<Vec<_>>().join("\n");
    if screen::keep(&text) {
        return;
    }
    let text = terminal::fitted(&text);
    let mut out = stdout().lock();
    drop(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// As [`say`], each line after the program's name, to standard error.
pub fn warn(text: &str) {
    for line in text.lines() {
        let line = format!("train: {}", printable(line));
        if !screen::keep(&line) {
            drop(writeln!(stderr().lock(), "{line}"));
        }
    }
}
