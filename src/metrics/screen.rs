//! The terminal while a dashboard uses it, restored on every exit path.
//!
//! The state is global because a process has one terminal. From [`enter`] to [`close`] the terminal shows the alternate
//! screen without a cursor and passes keys on as they are pressed; Ctrl-C always remains a signal. Other output is kept
//! by [`keep`] and printed at the end.

use std::io::{self, BufWriter, Stdout, Write, stdin, stdout};
use std::sync::OnceLock;
use std::time::Duration;

use kiln_system::stop::restore_by;
use parking_lot::Mutex;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::{Frame, Terminal};
use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use super::terminal::fitted;

/// How long [`close`] waits for a frame that is being drawn: a terminal may have stopped accepting output.
const PATIENCE: Duration = Duration::from_millis(500);
/// The code that disables a special key.
const NO_KEY: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };

struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    kept: Vec<String>,
}

static SCREEN: Mutex<Option<Screen>> = Mutex::new(None);
static FOUND: OnceLock<Termios> = OnceLock::new();
/// What [`enter`] is to keep from its first frame on.
static EARLY: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Switches the terminal to the dashboard.
pub fn enter() -> io::Result<()> {
    let mut screen = SCREEN.lock();
    if screen.is_none() {
        let found = tcgetattr(stdin())?;
        let terminal = Terminal::new(CrosstermBackend::new(BufWriter::new(stdout())))?;
        restore_by(close);
        let own = by_key(found.clone());
        let _ = FOUND.set(found);
        tcsetattr(stdin(), OptionalActions::Now, &own)?;
        *screen = Some(Screen { terminal, kept: std::mem::take(&mut EARLY.lock()) });
        // An error here must not stop the training.
        drop(execute!(stdout(), EnterAlternateScreen, Hide));
    }
    Ok(())
}

/// Draws with `view`, which gets the kept lines, and returns the keys since the last call; `None` after [`close`].
pub fn show(view: impl FnOnce(&mut Frame<'_>, &[String])) -> Option<Vec<u8>> {
    let mut screen = SCREEN.lock();
    let Screen { terminal, kept } = screen.as_mut()?;
    drop(terminal.draw(|frame| view(frame, kept)));
    let mut keys = [0; 64];
    let pressed = rustix::io::read(stdin(), &mut keys).unwrap_or(0);
    Some(keys[..pressed].to_vec())
}

/// Whether there is a dashboard, or was one. Never waits for it.
pub fn is_used() -> bool {
    FOUND.get().is_some()
}

/// Shows `text` on a dashboard that may come, though it is already printed.
pub fn show_again(text: &str) {
    EARLY.lock().push(text.into());
}

/// Keeps `text` until [`close`]; false if there is no dashboard.
pub fn keep(text: &str) -> bool {
    let mut screen = SCREEN.lock();
    let kept = screen.as_mut().map(|screen| screen.kept.extend(text.lines().map(String::from)));
    kept.is_some()
}

/// Restores the terminal and prints the kept lines. Does nothing without a dashboard.
pub fn close() {
    let Some(found) = FOUND.get() else { return };
    let mut kept = Vec::new();
    // Restore the modes even if the lock cannot be taken because a frame hangs or failed on this thread.
    if let Some(mut screen) = SCREEN.try_lock_for(PATIENCE) {
        let Some(screen) = screen.take() else { return };
        kept = screen.kept;
    }
    let _ = tcsetattr(stdin(), OptionalActions::Now, found);
    let mut out = stdout();
    drop(execute!(out, LeaveAlternateScreen, Show));
    drop(kept.iter().try_for_each(|line| writeln!(out, "{}", fitted(line))).and_then(|()| out.flush()));
}

/// Modes without line buffering and echo. Ctrl-C remains a signal; the keys that would leave the alternate screen in
/// place (Ctrl-Z, Ctrl-\) or freeze it (Ctrl-S) are disabled.
fn by_key(mut modes: Termios) -> Termios {
    modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN);
    modes.local_modes.insert(LocalModes::ISIG);
    modes.input_modes.remove(InputModes::IXON);
    for key in [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VQUIT] {
        modes.special_codes[key] = NO_KEY;
    }
    // Reading never waits.
    for code in [SpecialCodeIndex::VMIN, SpecialCodeIndex::VTIME] {
        modes.special_codes[code] = 0;
    }
    modes
}
