//! Placements as text: an aligned table, the choice, and why.

use std::fmt;

use super::Planning;
use super::forecast::{Forecast, Layout};
use crate::metrics::gibibytes;
use crate::metrics::line::count;
use crate::study::{aligned, percent, rate, seconds};

const HEAD: [&str; 9] =
    ["replicas", "stages", "micro-batches", "units", "images/s", "step", "waiting", "memory", "traffic"];

/// The memory column shows the device that needs most.
fn cells(row: &Forecast) -> [String; 9] {
    let it = &row.layout;
    let speed = if row.fits { rate(row.images_per_second) } else { "too large".into() };
    [
        replicas(it),
        it.cut.len().to_string(),
        it.micro_batches.to_string(),
        units(it),
        speed,
        seconds(row.step_seconds),
        percent(row.bubble),
        bytes(row.memory.iter().copied().fold(0.0, f64::max)),
        bytes(row.traffic),
    ]
}

fn bytes(count: f64) -> String {
    let mebibytes = count / (1u64 << 20) as f64;
    if mebibytes < 1024.0 { format!("{mebibytes:.1} MiB") } else { gibibytes(count) }
}

/// The units of each stage, as in `0-4 5-9`.
pub(crate) fn units(layout: &Layout) -> String {
    let part = |part: &std::ops::Range<usize>| match part.len() {
        1 => part.start.to_string(),
        _ => format!("{}-{}", part.start, part.end - 1),
    };
    layout.cut.iter().map(part).collect::<Vec<_>>().join(" ")
}

/// The replicas of each device if they differ, as in ` (3,1)`.
fn shares(layout: &Layout) -> String {
    if layout.shares.is_empty() { String::new() } else { format!(" ({})", joined(&layout.shares)) }
}

pub(crate) fn replicas(layout: &Layout) -> String {
    layout.replicas.to_string() + &shares(layout)
}

pub(crate) fn name(layout: &Layout) -> String {
    format!("{}{} in {}", count(layout.replicas, "replica"), shares(layout), count(layout.cut.len(), "stage"))
}

pub(crate) fn flags(layout: &Layout) -> Vec<String> {
    let mut flags = vec![
        format!("--world-size={}", layout.replicas),
        format!("--accumulation-steps={}", layout.micro_batches),
        format!("--stages={}", layout.cut.len()),
    ];
    if layout.cut.len() > 1 {
        flags.push(format!("--split-points={}", joined(&layout.split_points())));
    }
    if !layout.shares.is_empty() {
        flags.push(format!("--replicas-per-device={}", joined(&layout.shares)));
    }
    flags
}

/// The flags as a person types them.
pub(crate) fn spelled(layout: &Layout) -> String {
    flags(layout).join(" ").replace('=', " ")
}

pub(crate) fn joined(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Why the choice is the choice, in one line.
pub fn reason(planning: &Planning) -> String {
    let choice = planning.choice();
    if !choice.fits {
        return "no placement fits into memory; this is the fastest, try a smaller --batch-size".into();
    }
    match planning.rows.get(1) {
        None => format!("the best of {}", count(planning.compared, "cut")),
        Some(next) if !next.fits => "nothing else fits into memory".into(),
        Some(next) => format!(
            "{:.2} x the next, {}, with {} of a step spent waiting ({} here) and {} sent ({} here)",
            next.step_seconds / choice.step_seconds,
            name(&next.layout),
            percent(next.bubble),
            percent(choice.bubble),
            bytes(next.traffic),
            bytes(choice.traffic),
        ),
    }
}

impl fmt::Display for Planning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&aligned(&HEAD, self.rows.iter().map(cells)))?;
        let choice = self.choice();
        let (rate, name) = (rate(choice.images_per_second), name(&choice.layout));
        let compared = count(self.compared, "cut");
        writeln!(f, "choice      {name}, {rate} images/s predicted, the best of {compared}")?;
        writeln!(f, "why         {}", reason(self))?;
        write!(f, "use         {}", spelled(&choice.layout))
    }
}
