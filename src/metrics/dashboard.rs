//! A full-screen dashboard for a terminal.
//!
//! It starts at the first record, so that earlier output stays readable until then. A separate thread draws the
//! [`Panel`] and reads keys; [`super::screen`] switches the terminal's modes.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kiln_system::Result;
use kiln_system::stop::Stop;
use parking_lot::{Mutex, MutexGuard};
use signal_hook::consts::SIGINT;
use signal_hook::low_level::raise;

use super::line::{Goal, epoch_line, generation_line};
use super::panel::Panel;
use super::record::Record;
use super::screen;
use super::sink::Sink;
use super::terminal::columns;

const FRAME: Duration = Duration::from_millis(100);

pub(crate) struct Dashboard {
    goal: Goal,
    panel: Arc<Mutex<Panel>>,
    is_shown: bool,
}

impl Dashboard {
    pub(crate) fn new(goal: Goal, stop: Stop) -> Self {
        Self { goal, panel: Arc::new(Mutex::new(Panel::new(goal, stop))), is_shown: false }
    }

    /// The panel; starts the dashboard if it is not shown yet.
    fn panel(&mut self) -> MutexGuard<'_, Panel> {
        // If the terminal cannot be switched, training continues without a dashboard.
        if !std::mem::replace(&mut self.is_shown, true) && screen::enter().is_ok() {
            let panel = self.panel.clone();
            drop(thread::Builder::new().name("dashboard".into()).spawn(move || draw(&panel)));
        }
        self.panel.lock()
    }

    /// Shows a line that is printed again when the dashboard closes.
    fn line(&mut self, text: &str) {
        drop(self.panel());
        if !screen::keep(text) {
            drop(writeln!(stdout(), "{text}"));
        }
    }
}

fn draw(panel: &Mutex<Panel>) {
    while let Some(keys) = screen::show(|frame, lines| panel.lock().draw(frame, lines)) {
        // A single q acts like Ctrl-C; longer input was pasted.
        if matches!(keys[..], [b'q' | b'Q']) {
            drop(raise(SIGINT));
        }
        thread::park_timeout(FRAME);
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        if self.is_shown {
            screen::close();
        }
    }
}

impl Sink for Dashboard {
    fn record(&mut self, record: &Record) -> Result<()> {
        match record {
            // It is shown from the first step on.
            Record::Start(record) => self.panel.lock().start(record),
            Record::Step(record) => self.panel().step(record),
            Record::Epoch(record) => {
                self.panel().epoch(record);
                self.line(&epoch_line(record, &self.goal, columns()));
            }
            Record::Generation(record) => {
                self.panel.lock().generation(record);
                self.line(&generation_line(record));
            }
            Record::Replicas(record) => self.panel.lock().replicas(record),
        }
        Ok(())
    }

    fn validating(&mut self, done: usize, total: usize) -> Result<()> {
        self.panel().validating(done, total);
        Ok(())
    }
}
