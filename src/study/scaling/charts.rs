//! Charts of throughput, efficiency and step time over the replicas, for each mode.
//!
//! All three are functions of the step time, so measurements, model and ideal are drawn in the same way.

use super::curve::{Curve, Prediction, Row};
use super::measurement::Mode;
use crate::report::chart::{Across, Chart, Figure, Scale};
use crate::report::series::{Look, Series};

/// The legend of all charts.
pub const LEGEND: &str = "Marks: medians of measured steps, with bars over the middle half of them. Lines: the fitted \
                          model; dashed, with bars over its range at a level of 95 %: predicted. Thin lines: ideal \
                          scaling.";
/// Horizontal distance of the ranges of curves in one chart, as a factor.
const BESIDE: f64 = 1.035;
const POINTS: usize = 48;

struct Plot {
    title: &'static str,
    scale: Scale,
    /// The quantity as a function of curve, replicas and seconds of a step.
    of: fn(&Curve, f64, f64) -> f64,
    /// Whether it shows the middle half of the measured steps; for the efficiency it would be too short to see.
    has_halves: bool,
    /// Whether it shows the ranges of predictions; for the step time, one large range would flatten the curves.
    has_ranges: bool,
    has_waiting: bool,
}

const RATE: Plot = Plot {
    title: "images/s",
    scale: Scale::MaybeLogarithmic,
    of: |curve, replicas, seconds| curve.images(replicas) / seconds,
    has_halves: true,
    has_ranges: true,
    has_waiting: false,
};

const EFFICIENCY: Plot = Plot {
    title: "efficiency, %",
    scale: Scale::Tight,
    of: |curve, replicas, seconds| 100.0 * (curve.ideal(replicas) / seconds),
    has_halves: false,
    has_ranges: true,
    has_waiting: false,
};

const TIME: Plot = Plot {
    title: "time of a step, ms",
    scale: Scale::FromZero,
    of: |_, _, seconds| 1e3 * seconds,
    has_halves: true,
    has_ranges: false,
    has_waiting: true,
};

/// All charts.
pub fn charts(curves: &[Curve]) -> Vec<Chart> {
    by_mode(curves).iter().flat_map(|curves| [&RATE, &EFFICIENCY, &TIME].map(|plot| plot.chart(curves))).collect()
}

/// The main figure: rates and efficiencies.
pub fn main(curves: &[Curve]) -> Figure {
    let of_mode = |curves: &Vec<&Curve>| [&RATE, &EFFICIENCY].map(|plot| plot.chart(curves).figure());
    Figure::stack(by_mode(curves).iter().flat_map(of_mode).collect())
}

fn by_mode(curves: &[Curve]) -> Vec<Vec<&Curve>> {
    let of = |mode| curves.iter().filter(|curve| curve.mode == mode).collect::<Vec<_>>();
    [Mode::Weak, Mode::Strong].map(of).into_iter().filter(|curves| !curves.is_empty()).collect()
}

impl Plot {
    fn chart(&self, curves: &[&Curve]) -> Chart {
        let mut series = Vec::new();
        for (style, curve) in curves.iter().enumerate() {
            series.extend(self.lines(curve, style));
            let named = |name: &str| match curves {
                [_] => name.to_string(),
                _ if name == "measured" => curve.layout.name(),
                _ => format!("{name}, {}", curve.layout.name()),
            };
            series.push(self.marks(curve, &named("measured"), style, |row| row.step_seconds));
            if self.has_waiting {
                let style = style + curves.len();
                series.push(self.marks(curve, &named("waiting"), style, |row| row.exposed_communication));
            }
        }
        let widest = curves.iter().max_by_key(|curve| (ends(curve)[1], std::cmp::Reverse(ends(curve)[0])));
        series.extend(widest.map(|curve| self.ideal(curve)));
        let mode = if curves.iter().any(|curve| curve.mode == Mode::Weak) { "Weak" } else { "Strong" };
        let title = format!("{mode} scaling: {}", self.title);
        Chart { title, series, scale: self.scale, across: Across::Replicas, marks: Vec::new() }
    }

    fn marks(&self, curve: &Curve, name: &str, style: usize, seconds: fn(&Row) -> f64) -> Series {
        let point = |row: &Row| {
            let replicas = row.replicas as f64;
            [replicas, (self.of)(curve, replicas, seconds(row))]
        };
        Series { look: Look::Marks, ..Series::new(name, style, curve.rows.iter().map(point).collect()) }
    }

    /// Ideal scaling of the smallest configuration.
    fn ideal(&self, curve: &Curve) -> Series {
        let [first, last] = ends(curve);
        let point = |replicas: f64| [replicas, (self.of)(curve, replicas, curve.ideal(replicas))];
        let points = between(first, last).into_iter().map(point).collect();
        Series { look: Look::Ideal, ..Series::new("ideal", 0, points) }
    }

    /// The model from the first fitted size to the last predicted one, and bars for the spread and the ranges.
    fn lines(&self, curve: &Curve, style: usize) -> Vec<Series> {
        let line = |look: Look, points: Vec<[f64; 2]>| Series { look, ..Series::new("", style, points) };
        let bar = |replicas: usize, ends: [f64; 2], aside: f64| {
            let point = |seconds| [replicas as f64 * aside, (self.of)(curve, replicas as f64, seconds)];
            line(Look::Model, ends.map(point).to_vec())
        };
        let halves = curve.rows.iter().filter(|_| self.has_halves);
        let halves = halves.map(|row| bar(row.replicas, [row.step_seconds_q1, row.step_seconds_q3], 1.0));
        let mut lines: Vec<Series> = halves.collect();
        let Some(fit) = &curve.fit else { return lines };
        let piece = |look: Look, from: usize, to: usize| {
            let point = |replicas| Some([replicas, (self.of)(curve, replicas, curve.step_seconds(replicas)?.value)]);
            line(look, between(from, to).into_iter().filter_map(point).collect())
        };
        let [first, last] = [fit.replicas[0], fit.replicas[fit.replicas.len() - 1]];
        lines.push(piece(Look::Model, first, last));
        if ends(curve)[1] > last {
            lines.push(piece(Look::Predicted, last, ends(curve)[1]));
        }
        if self.has_ranges {
            let aside = BESIDE.powi(style as i32);
            let range = |it: &Prediction| Some(bar(it.replicas, it.step_seconds.range?, aside));
            lines.extend(curve.predictions.iter().filter_map(range));
        }
        lines
    }
}

/// The smallest and the largest measured or predicted size.
fn ends(curve: &Curve) -> [usize; 2] {
    let sizes = || curve.rows.iter().map(|row| row.replicas).chain(curve.predictions.iter().map(|it| it.replicas));
    [sizes().min().unwrap_or(1), sizes().max().unwrap_or(1)]
}

/// Sizes from one to the other, evenly on a logarithmic axis.
fn between(first: usize, last: usize) -> Vec<f64> {
    let (first, last) = (first as f64, last as f64);
    (0..=POINTS).map(|at| first * (last / first).powf(at as f64 / POINTS as f64)).collect()
}
