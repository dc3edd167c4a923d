//! What can be known of the terminal without taking it.

use std::io::{IsTerminal, stdin, stdout};

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use super::line::folded;

/// Whether there is a terminal that shows output and passes on keys, that can move its cursor, and that this process
/// may take: the terminal stops a process in the background that tries.
pub fn is_usable() -> bool {
    let moves = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    let in_front = || tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp());
    moves && stdin().is_terminal() && stdout().is_terminal() && in_front()
}

/// `text` as it fits into the terminal that standard output is, if it is one.
pub fn fitted(text: &str) -> String {
    let size = stdout().is_terminal().then(|| tcgetwinsize(stdout()).ok()).flatten();
    size.filter(|size| size.ws_col > 0).map_or_else(|| text.into(), |size| folded(text, size.ws_col.into()))
}
