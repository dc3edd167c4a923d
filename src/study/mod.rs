//! Studies of short runs: settings that suit a machine ([`finding`]), scaling ([`scaling`]), the placement of replicas and
//! stages ([`planning`]), and which runs of a sweep go on ([`halving`]).
//!
//! The room gets the measurements of runs made by others, and writes numbers, figures and a page.

pub mod finding;
pub mod halving;
pub mod planning;
pub mod scaling;

use std::path::Path;

use serde::Serialize;

use crate::checkpoint::{check_writable, write_atomic};
use crate::error::{Error, Result};
use crate::report::chart::Figure;
use crate::report::markup::escape;
use crate::report::{png, svg};

/// Writes `NAME.csv`, `.json`, `.svg`, `.png` and, last, `.html`.
fn write(
    directory: &Path,
    name: &str,
    figure: &Figure,
    csv: Vec<u8>,
    json: &impl Serialize,
    page: String,
) -> Result<()> {
    let json = serde_json::to_vec_pretty(json).expect("names and numbers have a JSON form");
    let files = [
        ("csv", csv),
        ("json", json),
        ("svg", svg::file(figure).into_bytes()),
        ("png", png::file(figure)),
        ("html", page.into_bytes()),
    ]
    .map(|(ending, bytes)| (directory.join(format!("{name}.{ending}")), bytes));
    std::fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    files.iter().try_for_each(|(path, _)| check_writable(path))?;
    files.iter().try_for_each(|(path, bytes)| write_atomic(path, bytes))
}

fn with_legend(legend: &str, charts: String) -> String {
    format!("<p class=\"caption\">{}</p>\n{charts}", escape(legend))
}

fn sources(title: &str, sources: &[&str]) -> String {
    let list: String = sources.iter().map(|source| format!("<li>{}</li>\n", escape(source))).collect();
    format!("<details>\n<summary>{title}</summary>\n<ul>\n{list}</ul>\n</details>\n")
}
