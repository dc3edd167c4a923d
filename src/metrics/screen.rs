//! The whole terminal, for as long as a dashboard has it: taken once, given back on every way out.
//!
//! A process has one terminal, so there is one value for it. From [`enter`] to [`close`] the terminal shows the
//! alternate screen without a cursor and passes keys on as they are pressed. It never stops turning Ctrl-C into a
//! signal, so there is no moment in which Ctrl-C is lost. What others print meanwhile is kept by [`keep`] and printed
//! at the end.

use std::io::{self, BufWriter, Stdout, Write, stdin, stdout};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::{Frame, Terminal};
use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use super::terminal::fitted;
use crate::stop::restore_by;

/// How long [`close`] waits for a frame that is being drawn; a terminal may take no output any more.
const PATIENCE: Duration = Duration::from_millis(500);
/// What stands for no key.
const NO_KEY: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };

struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    kept: Vec<String>,
}

static SCREEN: Mutex<Option<Screen>> = Mutex::new(None);
/// The terminal as it was found.
static FOUND: OnceLock<Termios> = OnceLock::new();

/// Takes the terminal.
///
/// # Errors
/// Those of the terminal.
pub fn enter() -> io::Result<()> {
    let mut screen = screen();
    if screen.is_none() {
        let found = tcgetattr(stdin())?;
        let terminal = Terminal::new(CrosstermBackend::new(BufWriter::new(stdout())))?;
        restore_by(close);
        let own = by_key(found.clone());
        let _ = FOUND.set(found);
        tcsetattr(stdin(), OptionalActions::Now, &own)?;
        *screen = Some(Screen { terminal, kept: Vec::new() });
        // A terminal that cannot show it is no reason to stop.
        drop(execute!(stdout(), EnterAlternateScreen, Hide));
    }
    Ok(())
}

/// Draws by `view`, which is handed the lines that are kept, and returns the keys since the last call; none when the
/// terminal was given back.
pub fn show(view: impl FnOnce(&mut Frame<'_>, &[String])) -> Option<Vec<u8>> {
    let mut screen = screen();
    let Screen { terminal, kept } = screen.as_mut()?;
    drop(terminal.draw(|frame| view(frame, kept)));
    let mut keys = [0; 64];
    let pressed = rustix::io::read(stdin(), &mut keys).unwrap_or(0);
    Some(keys[..pressed].to_vec())
}

/// Keeps `text` until the terminal is given back; false if nobody has it.
pub fn keep(text: &str) -> bool {
    let mut screen = screen();
    let kept = screen.as_mut().map(|screen| screen.kept.extend(text.lines().map(String::from)));
    kept.is_some()
}

/// Gives the terminal back as it was found, and prints what was kept. Does nothing where nobody has it.
pub fn close() {
    let Some(found) = FOUND.get() else { return };
    let mut kept = Vec::new();
    // Where a frame cannot be finished, or its drawing has just failed on this thread, the modes still can be.
    if let Some(mut screen) = screen_within(PATIENCE) {
        let Some(screen) = screen.take() else { return };
        kept = screen.kept;
    }
    let _ = tcsetattr(stdin(), OptionalActions::Now, found);
    let mut out = stdout();
    drop(execute!(out, LeaveAlternateScreen, Show));
    drop(kept.iter().try_for_each(|line| writeln!(out, "{}", fitted(line))).and_then(|()| out.flush()));
}

fn screen() -> MutexGuard<'static, Option<Screen>> {
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn screen_within(patience: Duration) -> Option<MutexGuard<'static, Option<Screen>>> {
    let end = Instant::now() + patience;
    loop {
        match SCREEN.try_lock() {
            Ok(screen) => return Some(screen),
            Err(TryLockError::Poisoned(screen)) => return Some(screen.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= end => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The same terminal with keys that arrive at once, unseen. Ctrl-C stays a signal; the keys that would leave this screen
/// behind (Ctrl-Z, Ctrl-\) or freeze it (Ctrl-S) do nothing.
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
