//! Results as text: table cells, an aligned table for the terminal, and formatted numbers.

use serde::Serialize;

use super::curve::{Curve, Prediction, Row};
use super::fit::{Estimate, Fit};
use super::measurement::Mode;
use crate::metrics::gibibytes;
use crate::metrics::line::count;

const UNKNOWN: &str = "-";

/// The headers of [`cells`].
pub const HEAD: [&str; 9] =
    ["replicas", "devices", "images/s", "middle half", "step", "speed-up", "efficiency", "waiting", "memory"];
/// The headers of [`predicted`].
pub const PREDICTED: [&str; 7] = ["replicas", "images/s", "range", "step", "range", "efficiency", "range"];

/// The cells of a measurement.
pub fn cells(row: &Row) -> [String; 9] {
    let images = row.images_per_step as f64;
    [
        row.replicas.to_string(),
        if row.devices_shared { "shared".into() } else { "own".into() },
        rate(row.images_per_second),
        format!("{} to {}", rate(images / row.step_seconds_q3), rate(images / row.step_seconds_q1)),
        seconds(row.step_seconds),
        format!("{:.2}", row.speed_up),
        percent(row.efficiency),
        percent(row.exposed_share),
        match row.memory_bytes {
            0 => UNKNOWN.into(),
            bytes => gibibytes(bytes as f64),
        },
    ]
}

/// The cells of a prediction.
pub fn predicted(it: &Prediction) -> [String; 7] {
    [
        it.replicas.to_string(),
        rate(it.images_per_second.value),
        range(&it.images_per_second, rate),
        seconds(it.step_seconds.value),
        range(&it.step_seconds, seconds),
        percent(it.efficiency.value),
        range(&it.efficiency, percent),
    ]
}

/// The parameters of a model: symbol, value, range and meaning.
pub fn parameters(curve: &Curve) -> Vec<[String; 4]> {
    let Some(fit) = &curve.fit else { return Vec::new() };
    let meanings = curve.mode.parameters();
    let times = fit.parameters.iter().zip(meanings).map(|((symbol, it), (_, meaning, weights))| {
        let mut terms = curve.mode.terms().into_iter().zip(weights).filter(|(_, weight)| *weight > 0.0);
        let is_left_out = terms.all(|(term, _)| fit.left_out.contains(&term));
        let value = if is_left_out { "left out".into() } else { seconds(it.value) };
        [symbol.to_string(), value, range(it, seconds), meaning.to_string()]
    });
    let serial = fit.serial_fraction.iter().map(|it| {
        let meaning = "the serial fraction: work that more replicas do not make shorter";
        ["s".into(), percent(it.value), range(it, percent), meaning.into()]
    });
    times.chain(serial).collect()
}

/// The title of a curve.
pub fn title(curve: &Curve) -> String {
    let first = &curve.rows[0];
    let fixed = match curve.mode {
        Mode::Weak => format!("{} per replica", count(first.images_per_step / first.replicas, "image")),
        Mode::Strong => format!("{} in all", count(first.images_per_step, "image")),
    };
    format!("{} scaling, {}, {fixed}", curve.mode, curve.layout.name())
}

/// A curve for the terminal: measurements, model and predictions.
pub fn text(curve: &Curve) -> String {
    let mut text = format!("{}\n", title(curve));
    text += &aligned(&HEAD, &curve.rows.iter().map(cells).collect::<Vec<_>>());
    let Some(fit) = &curve.fit else { return text };
    text += &format!("model  {}\n", curve.mode.formula());
    for [symbol, value, range, meaning] in parameters(curve) {
        let range = if range == UNKNOWN { range } else { format!("({range})") };
        text += &format!("  {symbol:<2} = {value:<8}  {range:<22}  {meaning}\n");
    }
    fit.remarks().iter().for_each(|remark| text += &format!("  {remark}\n"));
    if !curve.predictions.is_empty() {
        text += &format!(
            "{}\n{}",
            prediction_title(fit),
            aligned(&PREDICTED, &curve.predictions.iter().map(predicted).collect::<Vec<_>>())
        );
    }
    text
}

/// The title of the predictions.
pub fn prediction_title(fit: &Fit) -> &'static str {
    if fit.has_error() {
        "Predicted for sizes that were not measured"
    } else {
        "Predicted for sizes that were not measured, without a known error"
    }
}

/// Rows as CSV, with a header.
pub fn csv<Row: Serialize>(rows: &[Row]) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().for_each(|row| writer.serialize(row).expect("a row is flat, and memory takes what is written to it"));
    writer.into_inner().expect("memory takes what is written to it")
}

/// Images per second.
pub fn rate(value: f64) -> String {
    let decimals = if value < 1000.0 { 1 } else { 0 };
    format!("{value:.decimals$}")
}

/// A time with its unit.
pub fn seconds(value: f64) -> String {
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

/// A fraction in percent.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Both ends of a range.
pub fn range(it: &Estimate, show: impl Fn(f64) -> String) -> String {
    it.range.map_or_else(|| UNKNOWN.into(), |[low, high]| format!("{} to {}", show(low), show(high)))
}

/// Right-aligned columns, as wide as their widest cell.
pub fn aligned<const COLUMNS: usize>(head: &[&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let lines: Vec<[&str; COLUMNS]> =
        std::iter::once(*head).chain(rows.iter().map(|row| row.each_ref().map(String::as_str))).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let line = |cells: &[&str; COLUMNS]| {
        let cells: Vec<String> = (0..COLUMNS).map(|at| format!("{:>width$}", cells[at], width = width(at))).collect();
        format!("  {}\n", cells.join("  "))
    };
    lines.iter().map(line).collect()
}
