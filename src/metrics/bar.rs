//! Progress bars for a terminal: one for the run, one for the current validation, and above them a permanent line per
//! epoch.
//!
//! Draws on stderr, and nothing if stderr is not a terminal; [`super::console`] prints plain lines.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use kiln_system::Result;

use super::line::{Goal, epoch_line, generation_line, step_numbers};
use super::meter::{ETA_WINDOW, Throughput};
use super::record::Record;
use super::sink::Sink;
use super::terminal::columns;

#[derive(Debug)]
pub struct Bar {
    screen: MultiProgress,
    training: ProgressBar,
    validation: Option<ProgressBar>,
    goal: Goal,
    pace: Throughput,
    columns: fn() -> usize,
}

impl Bar {
    pub fn new(goal: Goal) -> Self {
        Self { columns, ..Self::on(ProgressDrawTarget::stderr(), goal) }
    }

    pub fn on(target: ProgressDrawTarget, goal: Goal) -> Self {
        let screen = MultiProgress::with_draw_target(target);
        let training = screen.add(ProgressBar::new(goal.steps as u64).with_style(style("train", "{wide_msg}")));
        let pace = Throughput::new(ETA_WINDOW);
        Self { screen, training, validation: None, goal, pace, columns: || usize::MAX }
    }

    /// Prints a line above the bars. Errors are ignored: training continues without a terminal.
    fn print(&self, text: &str) {
        drop(self.screen.println(text));
    }

    fn end_validation(&mut self) {
        if let Some(bar) = self.validation.take() {
            bar.finish_and_clear();
            self.screen.remove(&bar);
        }
    }
}

impl Sink for Bar {
    fn record(&mut self, record: &Record) -> Result<()> {
        match record {
            Record::Start(_) | Record::Replicas(_) => {}
            Record::Step(record) => {
                self.pace.mark(record.seconds, record.step as u64);
                let eta = self.pace.eta(self.goal.steps.saturating_sub(record.step));
                self.training.set_position(record.step as u64);
                self.training.set_message(step_numbers(record, eta));
            }
            Record::Epoch(record) => {
                self.end_validation();
                self.print(&epoch_line(record, &self.goal, (self.columns)()));
            }
            Record::Generation(record) => self.print(&generation_line(record)),
        }
        Ok(())
    }

    fn validating(&mut self, done: usize, total: usize) -> Result<()> {
        let screen = &self.screen;
        let new = || screen.add(ProgressBar::new(total as u64).with_style(style("validate", "")));
        self.validation.get_or_insert_with(new).set_position(done as u64);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.end_validation();
        self.training.finish_and_clear();
        Ok(())
    }
}

fn style(name: &str, message: &str) -> ProgressStyle {
    let template = format!("{name:<8} [{{bar:24}}] {{pos}}/{{len}}  {message}");
    ProgressStyle::with_template(&template).expect("the template is a constant").progress_chars("=> ")
}
