//! Properties of the terminal that can be queried without changing its modes.

use std::io::{IsTerminal, stdin, stdout};

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use super::line::folded;

/// Whether a dashboard can run: input and output are a terminal with a movable cursor, and this process is in the
/// foreground; a background process that changes the modes is stopped.
pub(crate) fn is_usable() -> bool {
    let moves = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    let in_front = || tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp());
    moves && stdin().is_terminal() && stdout().is_terminal() && in_front()
}

/// `text` folded to the width of the terminal, if standard output is one.
pub(crate) fn fitted(text: &str) -> String {
    match columns() {
        usize::MAX => text.into(),
        columns => folded(text, columns),
    }
}

/// The width of the terminal; no limit if standard output is none.
pub(crate) fn columns() -> usize {
    let size = stdout().is_terminal().then(|| tcgetwinsize(stdout()).ok()).flatten();
    size.filter(|size| size.ws_col > 0).map_or(usize::MAX, |size| size.ws_col.into())
}
