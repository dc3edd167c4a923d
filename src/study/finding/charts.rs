//! Charts of the loss over the learning rate, and of throughput and memory over the batch size.

use super::batch_size::Analysis;
use super::curve::Probe;
use super::learning_rate::{RangeTest, shown};
use super::search::Trial;
use crate::report::chart::{Across, Chart, Scale};
use crate::report::series::{Look, Series};

/// The memory limit is shown up to this multiple of the needed memory.
const FAR: f64 = 4.0;

/// The loss until it diverged, with the suggested rate, the minimum and the cut-off.
pub fn loss(test: &RangeTest) -> Chart {
    let (lowest, top) = heights(&test.averaged);
    let end = test.averaged.iter().position(|it| it.loss > top).unwrap_or(test.averaged.len());
    let points = |probes: &[Probe]| -> Vec<[f64; 2]> {
        probes[..end].iter().filter(|it| it.loss <= top).map(|it| [it.rate, it.loss]).collect()
    };
    let callout = |name: String, style: usize, rate: f64| Series {
        look: Look::Callout,
        ..Series::new(&name, style, vec![[rate, lowest]])
    };
    let mut series = vec![
        Series { look: Look::Background, ..Series::new("every step", 0, points(&test.probes)) },
        Series::new("loss", 0, points(&test.averaged)),
    ];
    if let Ok(it) = &test.verdict {
        series.push(callout(format!("suggested: {}", shown(it.effective)), 2, it.effective));
        series.push(callout(format!("smallest loss at {}", shown(it.minimum)), 7, it.minimum));
    }
    series.extend(test.cut_off.map(|rate| callout(format!("cut off at {}", shown(rate)), 1, rate)));
    let title = "Loss over a growing learning rate".into();
    Chart { title, series, scale: Scale::Linear, across: Across::Logarithmic("learning rate"), marks: Vec::new() }
}

/// The smallest loss, and the top of the chart: the highest loss before the minimum plus the fall, or plus half of that
/// loss if that is more. In a higher chart the fall would be too small to see.
fn heights(averaged: &[Probe]) -> (f64, f64) {
    let Some(least) = averaged.iter().enumerate().min_by(|a, b| a.1.loss.total_cmp(&b.1.loss)) else {
        return (0.0, f64::INFINITY);
    };
    let (least, lowest) = (least.0, least.1.loss);
    let start = averaged[..=least].iter().map(|it| it.loss).fold(lowest, f64::max);
    (lowest, start + (start - lowest).max(start.abs() / 2.0))
}

/// Throughput and, if known, memory.
pub fn trials(analysis: &Analysis) -> Vec<Chart> {
    let mut charts = Vec::new();
    let rates = |it: &Trial| Some([it.batch_size as f64, it.images_per_second()?]);
    let rates: Vec<[f64; 2]> = analysis.trials.iter().filter_map(rates).collect();
    if !rates.is_empty() {
        let measured = Series { look: Look::Marks, ..Series::new("measured", 0, rates) };
        charts.push(over_sizes("Throughput, images/s", vec![measured], analysis));
    }
    let bytes = |(size, bytes): (usize, u64)| [size as f64, gibibytes(bytes as f64)];
    let bytes: Vec<[f64; 2]> = analysis.trials.iter().filter_map(Trial::memory).map(bytes).collect();
    if let (Some(line), [[first, _], .., [last, _]]) = (&analysis.memory, bytes.as_slice()) {
        let end = analysis.too_large.map_or(*last, |size| size as f64);
        let mut series = Vec::new();
        if end > *last {
            // Evenly on a logarithmic axis.
            let sizes = (0..=48).map(|at| last * (end / last).powf(f64::from(at) / 48.0));
            let beyond = sizes.map(|size| [size, gibibytes(line.bytes(size))]).collect();
            // Style 5 has dashes.
            series.push(Series::new("predicted", 5, beyond));
        }
        let most = FAR * gibibytes(line.bytes(end));
        // A much higher limit would flatten the curve.
        if let Some(limit) = analysis.memory_limit.map(|it| gibibytes(it as f64)).filter(|it| *it <= most) {
            series.push(Series { look: Look::Ideal, ..Series::new("limit", 0, vec![[*first, limit], [end, limit]]) });
        }
        series.push(Series { look: Look::Marks, ..Series::new("measured", 0, bytes) });
        charts.push(over_sizes("Memory, GiB", series, analysis));
    }
    charts
}

fn over_sizes(title: &str, mut series: Vec<Series>, analysis: &Analysis) -> Chart {
    let callout = |name: String, style: usize, size: usize| Series {
        look: Look::Callout,
        ..Series::new(&name, style, vec![[size as f64, 0.0]])
    };
    series.extend(analysis.suggestion.map(|size| callout(format!("suggested: {size}"), 2, size)));
    series.extend(analysis.too_large.map(|size| callout(format!("too large: {size}"), 1, size)));
    Chart {
        title: title.into(),
        series,
        scale: Scale::FromZero,
        across: Across::Doubling("images per replica"),
        marks: Vec::new(),
    }
}

fn gibibytes(bytes: f64) -> f64 {
    bytes / (1u64 << 30) as f64
}
