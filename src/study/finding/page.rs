//! HTML pages: the suggestion, curves, numbers and sources.

use std::collections::BTreeMap;

use super::batch_size::Analysis;
use super::charts;
use super::learning_rate::{RangeTest, shown};
use super::text::{self, cells, scaled, step_rows, trial_rows};
use super::trial::Trial;
use crate::metrics::gibibytes;
use crate::report::markup::{folded, notes, section, tiles};
use crate::report::page;
use crate::report::table::{Cell, Table};
use crate::study::scaling::table::{percent, rate};
use crate::study::{sources, with_legend};

const SOURCES: [&str; 3] = [
    "L. N. Smith, Cyclical Learning Rates for Training Neural Networks, WACV 2017, arXiv 1506.01186",
    "J. Howard, S. Gugger, fastai: A Layered API for Deep Learning, Information 11(2), 2020, arXiv 2002.04688",
    "P. Goyal and others, Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, arXiv 1706.02677, for the \
     scaling of rates with replicas",
];
type Tile = (&'static str, String, String);

/// The page of a range test.
pub fn learning_rate(test: &RangeTest, about: &BTreeMap<String, String>) -> String {
    let none: Vec<String> =
        test.verdict.as_ref().err().map(|none| format!("no suggestion: {none}")).into_iter().collect();
    let mut steps = Table::new("Every step", ["Step", "Learning rate", "Loss", "Averaged rate", "Averaged loss"]);
    steps.rows.extend(step_rows(test).iter().map(|it| {
        let known = |value: Option<f64>, digits: &dyn Fn(f64) -> String| value.map_or_else(|| "-".into(), digits);
        let rates = |rate: f64| format!("{rate:.3e}");
        let losses = |loss: f64| format!("{loss:.4}");
        let averaged = [known(it.averaged_learning_rate, &rates), known(it.averaged_loss, &losses)];
        let numbers = [it.step.to_string(), rates(it.learning_rate), losses(it.loss)];
        numbers.into_iter().chain(averaged).map(Cell::Number).collect()
    }));
    let body = [
        notes(&none),
        section("Suggestion", &tiles(&rates(test))),
        section("Curve", &with_legend(charts::LEGEND, page::charts(&[charts::loss(test)]))),
        section("Settings", &page::pairs("What it was found with", "Name", about).html()),
        section("Details", &[folded("Every step as a table", &steps.html()), sources("Sources", &SOURCES)].concat()),
    ];
    page::document("Learning rate", &[], &body.concat())
}

/// The page of batch sizes.
pub fn batch_size(analysis: &Analysis, about: &BTreeMap<String, String>) -> String {
    let head = ["Images per replica", "Images/s", "Of the best", "Memory", "Why it does not fit"];
    let mut table = Table::new("Every batch size that was tried", head);
    table.rows.extend(
        trial_rows(analysis)
            .iter()
            .map(|row| cells(row).into_iter().map(Cell::Number).chain([Cell::text(&row.why)]).collect()),
    );
    if analysis.trials.iter().all(Trial::fits) {
        table.head.truncate(table.head.len() - 1);
        table.rows.iter_mut().for_each(|row| row.truncate(row.len() - 1));
    }
    let body = [
        notes(&analysis.caveats()),
        section("Suggestion", &tiles(&sizes(analysis))),
        section("Curves", &page::charts(&charts::trials(analysis))),
        section("Trials", &table.html()),
        section("Settings", &page::pairs("What it was found with", "Name", about).html()),
    ];
    page::document("Batch size", &[], &body.concat())
}

fn rates(test: &RangeTest) -> Vec<Tile> {
    let Ok(it) = &test.verdict else { return Vec::new() };
    let [low, high] = it.range.map(shown);
    let flag = scaled(it, test.growth).unwrap_or_else(|| "a tenth of the minimum".into());
    vec![
        ("--learning-rate", shown(it.learning_rate), flag),
        ("For all replicas", shown(it.effective), format!("worth a try: {low} to {high}")),
        ("Minimum", shown(it.minimum), "where the loss was smallest".into()),
        ("Steepest", shown(it.steepest), format!("where the loss fell by {:.2} per decade", -it.slope)),
    ]
}

fn sizes(analysis: &Analysis) -> Vec<Tile> {
    let mut tiles: Vec<Tile> = Vec::new();
    tiles.extend(analysis.suggestion.and_then(|size| {
        let share = percent(analysis.share(size)?);
        Some(("--batch-size", size.to_string(), format!("the smallest with {share} of the best throughput")))
    }));
    tiles.extend(analysis.best.map(|(size, best)| ("Best throughput", rate(best), format!("images/s, with {size}"))));
    tiles.extend(analysis.largest.map(|size| {
        let remark = match analysis.too_large {
            Some(size) => format!("{size} do not fit"),
            None if analysis.is_past_peak() => "larger ones were not tried".into(),
            None => String::new(),
        };
        ("Largest that fits", size.to_string(), remark)
    }));
    tiles.extend(analysis.memory.map(|line| {
        let limit = analysis.memory_limit.map_or_else(String::new, |bytes| format!(", of {}", gibibytes(bytes as f64)));
        let per_image = format!("{:.2} MiB", line.per_image / (1u64 << 20) as f64);
        ("Memory per image", per_image, format!("{}{limit}", text::memory(&line)))
    }));
    tiles
}
