//! The directory of a sweep: a numbered one that the same command finds again, and its lock.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use kiln_engine::checkpoint::{check_writable, run_dir, write_atomic};
use kiln_system::file::{self, MIB};
use kiln_system::{Error, Result, shown};
use serde::{Deserialize, Serialize};

use crate::config::grid::Point;

const SWEEPS: &str = "sweeps";

const FILE: &str = "sweep.json";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Described {
    name: String,
    arguments: Vec<String>,
}

/// The directory that the user `named`, or the directory of the newest sweep of the same runs, or the next free one.
/// More or fewer samples do not make it another sweep. A dry run creates nothing.
pub(super) fn of(named: Option<PathBuf>, points: &[Point], is_dry: bool) -> Result<PathBuf> {
    let base = Path::new(SWEEPS);
    let runs = described(points);
    let is_same = |directory: &PathBuf| {
        let text = file::text(&directory.join(FILE), 64 * MIB).ok();
        let before: Option<Vec<Described>> = text.and_then(|text| serde_json::from_str(&text).ok());
        before.is_some_and(|before| before.iter().zip(&runs).all(|(one, other)| one == other))
    };
    match named.or_else(|| run_dir::numbered(base).into_iter().rfind(is_same)) {
        Some(known) if is_dry => run_dir::check(&known, true).map(|()| known),
        Some(known) => Ok(known),
        None if is_dry => Ok(run_dir::upcoming(base)),
        None => run_dir::next(base),
    }
}

/// Locks the directory, since two sweeps at once would train the same runs. The lock ends with the process.
pub(super) fn claim(directory: &Path) -> Result<File> {
    fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    check_writable(&directory.join("sweep.csv"))?;
    let handle = File::open(directory).map_err(Error::io("open", directory))?;
    match handle.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let remedy = "wait for its end, or give another --output-dir";
            Err(Error::usage(format!("another sweep is running in '{}'; {remedy}", shown(directory))))
        }
        // Works without a lock on file systems that have none.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(handle),
    }
}

/// Writes what the runs are, by which the same command finds the directory, and points `sweeps/last` to it.
pub(super) fn describe(directory: &Path, points: &[Point]) -> Result<()> {
    let json = serde_json::to_vec_pretty(&described(points)).expect("texts are always JSON");
    write_atomic(&directory.join(FILE), &json)?;
    run_dir::announce(Path::new(SWEEPS), directory);
    Ok(())
}

fn described(points: &[Point]) -> Vec<Described> {
    let text = |argument: &std::ffi::OsString| argument.to_string_lossy().into_owned();
    let described =
        |point: &Point| Described { name: point.name.clone(), arguments: point.arguments.iter().map(text).collect() };
    points.iter().map(described).collect()
}
