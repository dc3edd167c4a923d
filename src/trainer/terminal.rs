//! What a run has to do with the terminal it may be started from.

use std::io::{IsTerminal, Write, stderr, stdin, stdout};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::learner::Display;
use crate::config::ProgressKind;
use crate::error::{Error, Result};
use crate::metrics::{EpochRecord, Sink, StepRecord};

/// Which display `--progress` asks for. Burn's dashboard needs a terminal to draw on and to read keys from.
pub(super) fn display(kind: ProgressKind) -> Result<Display> {
    let terminal = stdout().is_terminal() && stdin().is_terminal();
    match kind {
        ProgressKind::Auto if terminal => Ok(Display::Terminal),
        ProgressKind::Tui if terminal => Ok(Display::Terminal),
        ProgressKind::Tui => Err(Error::usage(
            "--progress tui needs a terminal for input and output, and this process has none; use --progress plain",
        )),
        _ => Ok(Display::Silent),
    }
}

/// Keeps Ctrl-C working below Burn's dashboard, which puts the terminal in raw mode and has no key for it.
#[derive(Debug, Default)]
pub(super) struct SignalKeys {
    set: bool,
}

impl Sink for SignalKeys {
    fn step(&mut self, _record: &StepRecord) -> Result<()> {
        // Once, at the first step: by then the dashboard has set the terminal up. A terminal that cannot be set this
        // way still has the dashboard's own key, so there is nothing to report.
        if !std::mem::replace(&mut self.set, true)
            && let Ok(mut settings) = tcgetattr(stdin())
        {
            settings.local_modes.insert(LocalModes::ISIG);
            let _ = tcsetattr(stdin(), OptionalActions::Now, &settings);
        }
        Ok(())
    }

    fn epoch(&mut self, _record: &EpochRecord) -> Result<()> {
        Ok(())
    }
}

/// Prints `text` and a line break. A reader that has gone away is no reason to stop.
pub fn say(text: &str) {
    let mut out = stdout().lock();
    drop(writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()));
}

/// Prints `line`, after the program's name, to standard error.
pub fn warn(line: &str) {
    drop(writeln!(stderr().lock(), "train: {line}"));
}
