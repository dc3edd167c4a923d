//! A curve: points, their mean for the eye, and fewer of them where there are more than a screen can show.
//!
//! A value that is not finite is a gap, and so is one that no f32 can hold: no computation of a run gives it.

use super::palette::Ink;

/// The most points of a curve.
pub const MOST: usize = 1000;
/// Fewer points need no mean.
const FEW: usize = 50;

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Look {
    /// A line with the colour and the dashes of its style, in the legend by its name.
    #[default]
    Line,
    /// A mark at every point, in the legend by its name.
    Marks,
    /// A thin line to compare with, in the legend by its name.
    Ideal,
    /// A line that belongs to the marks of the same style, and has no place in the legend.
    Model,
    /// The same where nothing was measured.
    Predicted,
    /// A faint line behind that of the same style, which is its mean.
    Behind,
    /// A line across the chart through every point, with its name above; it has no place in the legend.
    Callout,
}

/// A curve of a chart.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// What it shows.
    pub name: String,
    /// Its place in the list of colours.
    pub style: usize,
    /// All points as measured, x growing.
    pub points: Vec<[f64; 2]>,
    /// The half-life of its exponential moving average, in points; none for a curve that is smooth by itself.
    pub half_life: Option<usize>,
    /// Whether the average hides the points.
    pub is_bare: bool,
    /// How it is drawn.
    pub look: Look,
}

impl Series {
    /// A curve as it was measured.
    pub fn new(name: &str, style: usize, points: Vec<[f64; 2]>) -> Self {
        let gap = |[x, y]: [f64; 2]| [x, if y.abs() <= f64::from(f32::MAX) { y } else { f64::NAN }];
        let points = points.into_iter().filter(|[x, _]| x.abs() <= f64::from(f32::MAX)).map(gap).collect();
        Self { name: name.into(), style, points, ..Self::default() }
    }

    /// The same curve behind a moving average over a hundredth of it.
    pub fn smooth(mut self) -> Self {
        self.half_life = (self.points.len() >= FEW).then(|| self.points.len().div_ceil(100));
        self
    }

    /// Without the points behind the average, which would cover other curves.
    pub fn bare(self) -> Self {
        Self { is_bare: self.half_life.is_some(), ..self }
    }

    /// What is drawn behind the line.
    pub fn background(&self) -> &[[f64; 2]] {
        if self.half_life.is_some() && !self.is_bare { &self.points } else { &[] }
    }

    /// What stands out: the mean if there is one, else the points themselves.
    pub fn line(&self) -> Vec<[f64; 2]> {
        self.half_life.map_or_else(|| self.points.clone(), |half_life| moving_average(&self.points, half_life))
    }

    /// What its line or its marks are drawn with.
    pub fn ink(&self) -> Ink {
        match self.look {
            Look::Line => Ink::Series(self.style),
            Look::Behind => Ink::Faint(self.style),
            Look::Marks | Look::Model | Look::Callout => Ink::Whole(self.style),
            Look::Predicted => Ink::Dashed(self.style),
            Look::Ideal => Ink::Axis,
        }
    }

    /// Whether the legend names it.
    pub fn is_named(&self) -> bool {
        !matches!(self.look, Look::Model | Look::Predicted | Look::Behind | Look::Callout)
    }

    /// Values that are not finite.
    pub fn gaps(&self) -> usize {
        self.points.iter().filter(|[_, y]| y.is_nan()).count()
    }

    /// The first and the last value that is finite.
    pub fn ends(&self) -> Option<(f64, f64)> {
        let mut values = self.points.iter().map(|[_, y]| *y).filter(|y| y.is_finite());
        let first = values.next()?;
        Some((first, values.next_back().unwrap_or(first)))
    }
}

/// The exponential moving average in which the weight of a point halves every `half_life` points. The first points are
/// averaged over what there is; a gap stays a gap and does not count.
pub fn moving_average(points: &[[f64; 2]], half_life: usize) -> Vec<[f64; 2]> {
    let decay = 0.5f64.powf(1.0 / half_life.max(1) as f64);
    let (mut sum, mut weight) = (0.0, 0.0);
    let average = |[x, y]: &[f64; 2]| {
        if y.is_nan() {
            return [*x, f64::NAN];
        }
        (sum, weight) = (decay * sum + y, decay * weight + 1.0);
        [*x, sum / weight]
    };
    points.iter().map(average).collect()
}

/// How many neighbouring points are drawn as two; 1 if all are drawn.
pub fn bucket(points: usize) -> usize {
    if points <= MOST { 1 } else { points.div_ceil(MOST / 2) }
}

/// At most [`MOST`] points: of each [`bucket`] the smallest and the largest, in their order, and a gap if there was one.
pub fn thin(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let size = bucket(points.len());
    if size == 1 { points.to_vec() } else { points.chunks(size).flat_map(extremes).collect() }
}

fn extremes(chunk: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let finite = || chunk.iter().enumerate().filter(|(_, [_, y])| y.is_finite());
    let by_value = |a: &(usize, &[f64; 2]), b: &(usize, &[f64; 2])| a.1[1].total_cmp(&b.1[1]);
    let ends = [finite().min_by(by_value), finite().max_by(by_value)];
    let mut kept: Vec<usize> = ends.into_iter().flatten().map(|(at, _)| at).collect();
    kept.sort_unstable();
    kept.dedup();
    let mut points: Vec<[f64; 2]> = kept.into_iter().map(|at| chunk[at]).collect();
    points.extend(chunk.iter().rfind(|[_, y]| y.is_nan()));
    points
}
