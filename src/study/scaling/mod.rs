//! Scaling of training: measured runs of several sizes, compared with the smallest one of the same mode.
//!
//! [`Sizes`] are the requested sizes, a [`Measurement`] is one measured run, a `Row` compares it. [`Analysis`] holds
//! all of them, a table for each mode, and a picture of speed-up and efficiency against the ideal.

mod measurement;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use measurement::Row;
pub use measurement::{Measurement, Mode};
use serde::Serialize;

use super::{UNKNOWN, aligned, percent, rate, seconds, write};
use crate::metrics::gibibytes;
use crate::metrics::line::count;
use crate::report::chart::{Across, Chart, Scale};
use crate::report::series::{Look, Series};
use kiln_system::{Error, Result};

const HEAD: [&str; 10] = [
    "replicas",
    "processes",
    "devices",
    "images/s",
    "middle half",
    "step",
    "speed-up",
    "efficiency",
    "waiting",
    "memory",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    pub(crate) replicas: Vec<usize>,
    /// Numbers of processes; combinations with fewer replicas are skipped.
    pub(crate) processes: Vec<usize>,
    pub(crate) modes: Vec<Mode>,
    /// Measured steps of each run.
    pub(crate) steps: usize,
    /// Steps before them.
    pub(crate) warmup: usize,
    /// CPU threads per replica; 0 means the number that the largest size leaves each.
    pub(crate) threads: usize,
    pub(crate) output: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// Hardware and settings, from the caller.
    about: BTreeMap<String, String>,
    /// Notes for the reader, a sentence or two each.
    caveats: Vec<String>,
    /// The measurements, sorted by mode, replicas and processes.
    measurements: Vec<Measurement>,
    /// The same relative to the smallest of its mode.
    rows: Vec<Row>,
}

impl Analysis {
    /// Compares measurements, in any order; `about` describes hardware and settings.
    ///
    /// # Errors
    /// [`Error::Usage`] without a measurement; [`Error::Data`] for one without a step.
    pub fn new(mut measurements: Vec<Measurement>, about: BTreeMap<String, String>) -> Result<Self> {
        if measurements.is_empty() {
            return Err(Error::usage("nothing was measured; give sizes to measure, as in --replicas 1,2,4"));
        }
        if let Some(empty) = measurements.iter().find(|it| it.step_seconds.is_empty()) {
            return Err(Error::Data(format!("the measurement '{}' has no step; measure it again", empty.name())));
        }
        measurements.sort_by_key(|it| (it.mode, it.replicas, it.processes));
        let modes = measurements.chunk_by(|a, b| a.mode == b.mode);
        let rows: Vec<Row> = modes.flat_map(|all| all.iter().map(|it| Row::new(it, &all[0]))).collect();
        Ok(Self { about, caveats: caveats(&rows), measurements, rows })
    }

    /// Writes `scaling.csv`, `scaling.json` and, last, `scaling.svg`.
    pub fn write(&self, directory: &Path) -> Result<()> {
        write(directory, "scaling", &self.rows, self, &self.charts())
    }

    /// The speed-up and the efficiency of each mode.
    pub fn charts(&self) -> Vec<Chart> {
        self.rows.chunk_by(|a, b| a.mode == b.mode).flat_map(charts).collect()
    }
}

fn caveats(rows: &[Row]) -> Vec<String> {
    let shared: BTreeSet<usize> = rows.iter().filter(|row| row.devices_shared).map(|row| row.replicas).collect();
    let sizes: Vec<String> = shared.iter().map(ToString::to_string).collect();
    let caveat = format!(
        "With {} replicas, replicas shared devices or cores and took turns. These numbers are the cost of more \
         replicas on this machine, not the gain of more devices.",
        sizes.join(", ")
    );
    if sizes.is_empty() { Vec::new() } else { vec![caveat] }
}

/// The rows of one mode, with a line for each number of processes, and the ideal.
fn charts(rows: &[Row]) -> [Chart; 2] {
    let [first, last] = [&rows[0], &rows[rows.len() - 1]].map(|row| row.replicas as f64);
    let processes: BTreeSet<usize> = rows.iter().map(|row| row.processes).collect();
    let chart = |title: &str, scale: Scale, value: fn(&Row) -> f64, ideal: [f64; 2]| {
        let measured = |(style, processes): (usize, &usize)| {
            let own = rows.iter().filter(|row| row.processes == *processes);
            let points = own.map(|row| [row.replicas as f64, value(row)]).collect();
            Series { look: Look::Marks, ..Series::new(&count(*processes, "process"), style, points) }
        };
        let mut series: Vec<Series> = processes.iter().enumerate().map(measured).collect();
        let ideal = vec![[first, ideal[0]], [last, ideal[1]]];
        series.push(Series { look: Look::Ideal, ..Series::new("ideal", 0, ideal) });
        let title = format!("{title}, {} scaling", rows[0].mode);
        Chart { title, series, scale, across: Across::Doubling("replicas"), marks: Vec::new() }
    };
    [
        chart("Speed-up", Scale::Doubling, |row| row.speed_up, [1.0, last / first]),
        chart("Efficiency in %", Scale::Tight, |row| 100.0 * row.efficiency, [100.0; 2]),
    ]
}

fn cells(row: &Row) -> [String; 10] {
    let images = row.images_per_step as f64;
    [
        row.replicas.to_string(),
        row.processes.to_string(),
        if row.devices_shared { "shared".into() } else { "own".into() },
        rate(row.images_per_second),
        format!("{} to {}", rate(images / row.step_seconds_q3), rate(images / row.step_seconds_q1)),
        seconds(row.step_seconds),
        format!("{:.2}", row.speed_up),
        percent(row.efficiency),
        percent(row.exposed_share),
        if row.memory_bytes == 0 { UNKNOWN.into() } else { gibibytes(row.memory_bytes as f64) },
    ]
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rows in self.rows.chunk_by(|a, b| a.mode == b.mode) {
            let Row { mode, replicas, images_per_step, .. } = rows[0];
            let fixed = match mode {
                Mode::Weak => format!("{} per replica", count(images_per_step / replicas, "image")),
                Mode::Strong => format!("{} in all", count(images_per_step, "image")),
            };
            writeln!(f, "{mode} scaling, {fixed}\n{}", aligned(&HEAD, rows.iter().map(cells)))?;
        }
        self.caveats.iter().try_for_each(|caveat| writeln!(f, "note: {caveat}"))
    }
}
