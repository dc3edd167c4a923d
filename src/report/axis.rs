//! A linear or logarithmic scale with ticks at round numbers.

const WANTED: f64 = 5.0;
/// Most decades of a logarithmic axis with a tick each.
const MOST_DECADES: i32 = 6;
/// Most doublings of an axis with a tick each.
const MOST_DOUBLINGS: i32 = 8;
/// A logarithmic axis with a smaller ratio of its ends also has ticks at 2 and 5.
const FEW_DECADES: f64 = 300.0;
/// Values with a smaller relative difference count as equal; close to the precision of f64.
const FLAT: f64 = 1e-9;
/// The smallest step of an axis: far below all measurements, far above f64's subnormals.
const LEAST: f64 = 1e-30;

#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// The distance of neighbouring ticks of a linear axis.
    step: f64,
    /// Values with a grid line and a label.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// A linear axis from the round number below `min` to the one above `max`.
    pub fn linear(min: f64, max: f64) -> Self {
        let (min, max) = if is_flat(min, max) { widened(min, max) } else { (min, max) };
        let step = round_step((max - min) / WANTED);
        let (first, last) = ((min / step).floor(), (max / step).ceil());
        let count = (last - first).clamp(1.0, 4.0 * WANTED) as usize;
        let ticks: Vec<f64> = (0..=count).map(|tick| (first + tick as f64) * step).collect();
        Self { low: first * step, high: last * step, logarithmic: false, step, ticks }
    }

    /// A linear axis that ends at the last value, as for time.
    pub fn tight(min: f64, max: f64) -> Self {
        let mut axis = Self::linear(min, max);
        if !is_flat(min, max) {
            (axis.low, axis.high) = (min, max);
            axis.ticks.retain(|tick| (min..=max).contains(tick));
        }
        axis
    }

    /// A linear axis from 0 for a number of things, with ticks at whole numbers.
    pub fn count(most: usize) -> Self {
        let mut axis = Self::linear(0.0, most.max(1) as f64);
        axis.step = axis.step.max(1.0);
        axis.ticks.retain(|tick| tick.fract() == 0.0);
        axis
    }

    /// A logarithmic axis; `min` must be above 0.
    pub fn logarithmic(min: f64, max: f64) -> Self {
        let (low, high) = (min / 1.1, max * 1.1);
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let decades = last - first;
        let multiples: &[f64] = if high / low < FEW_DECADES { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let stride = (decades / MOST_DECADES + 1) as usize;
        let ticks = (first..=last)
            .step_by(stride)
            .flat_map(|exponent| multiples.iter().map(move |it| it * 10f64.powi(exponent)));
        let ticks = ticks.filter(|tick| (low..=high).contains(tick)).collect();
        Self { low, high, logarithmic: true, step: 0.0, ticks }
    }

    /// A logarithmic axis with ticks at powers of two, as for replicas; `min` must be above 0.
    pub fn doubling(min: f64, max: f64) -> Self {
        // Room for the marks of the first and the last point.
        let (low, high) = (min / 1.15, max * 1.15);
        let (first, last) = (low.log2().ceil() as i32, high.log2().floor() as i32);
        let stride = ((last - first) / MOST_DOUBLINGS + 1) as usize;
        let ticks = (first..=last).step_by(stride).map(|exponent| 2f64.powi(exponent)).collect();
        Self { low, high, logarithmic: true, step: 0.0, ticks }
    }

    /// The position of a value on the axis: 0 at the low end, 1 at the high end.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.logarithmic {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }

    /// The label of a tick, with enough decimals to distinguish it from its neighbours.
    pub fn label(&self, tick: f64) -> String {
        if self.logarithmic || tick == 0.0 && self.step >= 1.0 {
            return plain(tick);
        }
        let (unit, name) = match self.low.abs().max(self.high.abs()) {
            1e6.. => (1e6, "M"),
            1e4.. => (1e3, "k"),
            _ => (1.0, ""),
        };
        let decimals = (-(self.step / unit).log10().floor()).max(0.0);
        if decimals > 4.0 || tick.abs() >= 1e9 {
            return format!("{tick:.1e}");
        }
        // Adding 0.0 removes the sign of -0.0.
        format!("{:.*}{name}", decimals as usize, tick / unit + 0.0)
    }
}

/// A number with about four digits.
pub fn plain(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e5).contains(&size) => format!("{value:.0e}"),
        size => trimmed(value, (3.0 - size.log10().floor()).max(0.0) as usize),
    }
}

fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

fn is_flat(min: f64, max: f64) -> bool {
    max - min <= (min.abs().max(max.abs()) * FLAT).max(LEAST)
}

fn widened(min: f64, max: f64) -> (f64, f64) {
    let room = (min.abs().max(max.abs()) * 0.1).max(LEAST);
    if max.abs() <= LEAST { (0.0, 1.0) } else { (min - room, max + room) }
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `step`.
fn round_step(step: f64) -> f64 {
    let decade = 10f64.powf(step.log10().floor());
    let multiple = [1.0, 2.0, 5.0].into_iter().find(|it| it * decade >= step * (1.0 - FLAT)).unwrap_or(10.0);
    multiple * decade
}
