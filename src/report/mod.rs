//! The report of one run or of several compared: an HTML file, and its main curves as a picture.
//!
//! `run` reads a run's directory, [`evaluation`] and `trace` two of its files. [`series`] is a curve, [`axis`] a
//! scale, [`chart`] lays both out as shapes, [`svg`] renders them with the colours of [`palette`];
//! [`curves`] defines the charts, `against` those of a sweep, `matrix` the confusion matrix, [`timeline`] the
//! generations of an elastic run, `pipeline` a step of stages. `table`, `results`, `phases` and `classes` are the other
//! parts of the `page`.
//!
//! The HTML file is self-contained: no network, scripts or fonts. [`markup`] escapes all text from files. A killed or
//! running run has a report too, with notes on missing or damaged parts. The page of a [`Followed`] run is the same with
//! a script that fetches it again; `tail` reads the logs as they grow.

mod against;
pub mod axis;
pub mod chart;
mod classes;
pub mod curves;
pub mod evaluation;
mod followed;
pub mod markup;
pub(crate) mod matrix;
mod page;
pub mod palette;
mod phases;
mod pipeline;
mod replicas;
pub(crate) mod results;
mod run;
pub mod series;
pub mod svg;
mod table;
mod tail;
pub mod timeline;
pub(crate) mod trace;

use std::fs;
use std::path::{Path, PathBuf};

pub use followed::Followed;
pub use run::Run;
pub(crate) use tail::Tail;

use kiln_engine::checkpoint::{check_writable, write_atomic};
use kiln_system::{Error, Result, shown};

/// Where the report of several runs is written if the user names no file.
const COMPARISON: &str = "report";

/// Writes the report of `runs` to the file `to`, by default `report.html` in the directory of a single run, or in
/// `report` for several; returns the file.
pub fn write_for_user(runs: &[PathBuf], to: Option<PathBuf>) -> Result<PathBuf> {
    let place = Path::new(COMPARISON);
    let directory = if let [run] = runs { run } else { place };
    let to = match to {
        Some(to) => return write(runs, &to).map(|()| to),
        None => directory.join("report.html"),
    };
    let is_new = runs.len() > 1 && !place.exists();
    if is_new {
        fs::create_dir(place).map_err(Error::io("create", place))?;
    }
    write(runs, &to).inspect_err(|_| {
        if is_new {
            // Fails, as it should, if something is in it.
            drop(fs::remove_dir(place));
        }
    })?;
    Ok(to)
}

/// Writes the report of `runs` to the file `to`, and `curves.svg` to the same directory.
///
/// # Errors
/// [`Error::Usage`] without a run or if `to` cannot be written, [`Error::Data`] if a directory is not a run's,
/// [`Error::Io`] if another file cannot be written.
pub fn write(runs: &[PathBuf], to: &Path) -> Result<()> {
    if runs.is_empty() {
        return Err(Error::usage("a report needs at least one run; give its directory, as in runs/0001"));
    }
    write_runs(runs.iter().map(|directory| Run::read(directory)).collect::<Result<_>>()?, to)
}

/// As [`write()`], of the runs of a sweep, each with the settings that the sweep varies.
///
/// # Errors
/// Those of [`write()`].
pub fn write_sweep(runs: Vec<(PathBuf, Vec<(String, String)>)>, to: &Path) -> Result<()> {
    let read = |(directory, varied): (PathBuf, _)| Ok(Run { varied, ..Run::read(&directory)? });
    write_runs(runs.into_iter().map(read).collect::<Result<_>>()?, to)
}

fn write_runs(mut runs: Vec<Run>, to: &Path) -> Result<()> {
    tell_apart(&mut runs);
    link(&mut runs, to);
    check_writable(to).map_err(|error| Error::usage(format!("{error}; give another --output")))?;
    write_atomic(&to.with_file_name("curves.svg"), svg::file(&curves::main(&runs)).as_bytes())?;
    write_atomic(to, page::page(&runs).as_bytes())
}

/// Stores the path of each run's page, relative to the page `to`.
fn link(runs: &mut [Run], to: &Path) {
    let Ok(to) = std::path::absolute(to) else { return };
    for run in runs {
        let page = std::path::absolute(run.directory.join("report.html")).ok();
        let other = page.filter(|page| *page != to && page.is_file());
        run.link = other.zip(to.parent()).map(|(page, from)| markup::href(from, &page));
    }
}

/// Replaces equal names, as of `a/0001` and `b/0001`, by paths.
fn tell_apart(runs: &mut [Run]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for run in runs {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = shown(&run.directory);
        }
    }
}
