//! Studies of short runs: settings that suit a machine ([`finding`]), scaling ([`scaling`]), the placement of replicas
//! and stages ([`planning`]), and which runs of a sweep continue ([`halving`]).
//!
//! The room gets the measurements of runs made by others, and writes tables and one picture.

pub mod finding;
pub mod halving;
pub mod planning;
pub mod scaling;

use std::path::Path;

use kiln_engine::checkpoint::{check_writable, write_atomic};
use kiln_system::{Error, Result};
use serde::Serialize;

use crate::metrics::csv;
use crate::report::chart::{Chart, Figure};
use crate::report::svg;

/// A cell without a value.
const UNKNOWN: &str = "-";

/// Writes `NAME.csv`, `.json` and, last, `.svg`.
fn write(directory: &Path, name: &str, rows: &[impl Serialize], json: &impl Serialize, charts: &[Chart]) -> Result<()> {
    let json = serde_json::to_vec_pretty(json).expect("names and numbers have a JSON form");
    let files =
        [("csv", csv::rows(rows, true)), ("json", json), ("svg", svg::file(&Figure::stack(charts)).into_bytes())]
            .map(|(ending, bytes)| (directory.join(format!("{name}.{ending}")), bytes));
    std::fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    files.iter().try_for_each(|(path, _)| check_writable(path))?;
    files.iter().try_for_each(|(path, bytes)| write_atomic(path, bytes))
}

/// Right-aligned columns, as wide as their widest cell.
pub(crate) fn aligned<const COLUMNS: usize>(
    head: &[&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    let lines: Vec<_> = std::iter::once(head.map(String::from)).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let line = |cells: &[String; COLUMNS]| {
        let cells: Vec<String> = (0..COLUMNS).map(|at| format!("{:>width$}", cells[at], width = width(at))).collect();
        format!("  {}\n", cells.join("  "))
    };
    lines.iter().map(line).collect()
}

/// Images per second.
pub(crate) fn rate(value: f64) -> String {
    let decimals = if value < 1000.0 { 1 } else { 0 };
    format!("{value:.decimals$}")
}

/// A time with its unit.
fn seconds(value: f64) -> String {
    let (factor, unit) = match value {
        0.0 => return "0 s".into(),
        1.0.. => (1.0, "s"),
        1e-3.. => (1e3, "ms"),
        _ => (1e6, "\u{b5}s"),
    };
    let scaled = value * factor;
    // Three digits, the precision of a median of few steps.
    let decimals = (2.0 - scaled.log10().floor()).clamp(0.0, 2.0) as usize;
    format!("{scaled:.decimals$} {unit}")
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
