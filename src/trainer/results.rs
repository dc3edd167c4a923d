//! The results of a sweep: a table on the terminal, sweep.csv and sweep.html.

use std::path::{Path, PathBuf};

use kiln_engine::checkpoint::write_atomic;
use kiln_system::{Result, shown};

use super::terminal::{say, warn};
use crate::config::grid::Point;
use crate::metrics::{csv, format_duration};
use crate::report::Run;
use crate::report::results::{Numbers, percent};

/// The exit code of a run with refused settings.
const REFUSED: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct Results(Vec<Row>);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ending {
    /// The exit code of a run that failed.
    pub(super) failure: Option<u8>,
    /// Whether it was stopped early because others were better.
    pub(super) is_paused: bool,
}

#[derive(Debug)]
struct Row {
    name: String,
    settings: Vec<(String, String)>,
    directory: PathBuf,
    ending: Ending,
    numbers: Numbers,
    /// Epochs done; `None` if the directory holds no run.
    epochs: Option<usize>,
}

impl Results {
    pub(super) fn add(&mut self, point: &Point, directory: PathBuf, ending: Ending) {
        // A refused run has trained nothing; what is in its directory is of another one.
        let run = Run::read(&directory).ok().filter(|_| ending.failure != Some(REFUSED));
        let numbers = run.as_ref().map(Numbers::of).unwrap_or_default();
        let epochs = run.map(|run| run.epochs.last().map_or(0, |it| it.epoch));
        let (name, settings) = (point.name.clone(), point.settings.clone());
        self.0.push(Row { name, settings, directory, ending, numbers, epochs });
    }

    pub(super) fn any_failed(&self) -> bool {
        self.0.iter().any(|row| row.ending.failure.is_some())
    }

    /// The best first; runs without an accuracy last.
    fn ranked(&self) -> Vec<&Row> {
        let accuracy = |row: &&Row| row.numbers.best.map_or(f64::NEG_INFINITY, |(accuracy, _)| accuracy);
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by(|a, b| accuracy(b).total_cmp(&accuracy(a)));
        rows
    }

    pub(super) fn table(&self) -> String {
        let width = self.0.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max("run".len());
        let line = |[name, best, last, loss, rate, time]: [&str; 6], remark: &str| {
            format!("{name:width$}  {best:>8}  {last:>8}  {loss:>8}  {rate:>8}  {time:>7}{remark}")
        };
        let head = line(["run", "best", "last", "loss", "images/s", "time"], "");
        let row = |row: &Row| {
            let Numbers { best, last, loss, images_per_second, seconds } = row.numbers;
            let text = |text: Option<String>| text.unwrap_or("-".into());
            let (best, last) = (text(best.map(|it| percent(it.0))), text(last.map(percent)));
            let (loss, time) = (text(loss.map(|it| format!("{it:.4}"))), text(seconds.map(format_duration)));
            let rate = text(images_per_second.map(|it| format!("{it:.0}")));
            let remark = match row.ending {
                Ending { failure: Some(code), .. } => format!("  failed with exit code {code}"),
                Ending { is_paused: true, .. } => format!("  stopped after epoch {}", row.epochs.unwrap_or(0)),
                _ => String::new(),
            };
            line([&row.name, &best, &last, &loss, &rate, &time], &remark)
        };
        std::iter::once(head).chain(self.ranked().into_iter().map(row)).collect::<Vec<_>>().join("\n")
    }

    /// Writes sweep.csv and, if any run has records, sweep.html.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let file = directory.join("sweep.csv");
        write_atomic(&file, &self.csv())?;
        let known = self.ranked().into_iter().filter(|row| row.epochs.is_some());
        let runs: Vec<_> = known.map(|row| (row.directory.clone(), row.settings.clone())).collect();
        let page = directory.join("sweep.html");
        if runs.is_empty() {
            return Ok(());
        }
        match crate::report::write_sweep(runs, &page) {
            Ok(()) => say(&format!("\nreport      {}\ntable       {}", shown(&page), shown(&file))),
            Err(error) => warn(&format!("warning: the report was not written: {error}")),
        }
        Ok(())
    }

    fn csv(&self) -> Vec<u8> {
        const NUMBERS: [&str; 9] = [
            "best_accuracy",
            "best_epoch",
            "last_accuracy",
            "last_loss",
            "images_per_second",
            "seconds",
            "epochs",
            "exit_code",
            "directory",
        ];
        let keys = self.0.first().into_iter().flat_map(|row| row.settings.iter().map(|(key, _)| key.clone()));
        let head: Vec<String> = keys.chain(NUMBERS.map(String::from)).collect();
        let cells = |row: &Row| -> Vec<String> {
            let Numbers { best, last, loss, images_per_second, seconds } = row.numbers;
            let text = |number: Option<f64>| number.map(|number| number.to_string()).unwrap_or_default();
            let numbers = [
                text(best.map(|it| it.0)),
                best.map(|it| it.1.to_string()).unwrap_or_default(),
                text(last),
                text(loss),
                text(images_per_second),
                text(seconds),
                row.epochs.unwrap_or(0).to_string(),
                row.ending.failure.unwrap_or(0).to_string(),
                shown(&row.directory),
            ];
            row.settings.iter().map(|(_, value)| value.clone()).chain(numbers).collect()
        };
        csv::table(std::iter::once(head).chain(self.ranked().into_iter().map(cells)))
    }
}
