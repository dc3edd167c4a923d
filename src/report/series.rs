//! A curve: points, their moving average, and thinning to the resolution of a screen.
//!
//! A value that is not finite, or exceeds f32 and so cannot come from a run, is a gap.

use super::palette::Ink;

/// Most points of a drawn curve.
pub const MOST: usize = 1000;
/// Fewest points with a moving average.
const FEW: usize = 50;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Look {
    /// A line with the colour and dashes of its style, in the legend.
    #[default]
    Line,
    /// A mark at every point and a line through them, in the legend.
    Marks,
    /// A mark at every point without a line, in the legend.
    Points,
    /// A thin reference line, in the legend.
    Ideal,
    /// A faint line behind its moving average of the same style, not in the legend.
    Background,
    /// A vertical line at every point, with the name above; not in the legend.
    Callout,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    pub name: String,
    /// Index of the colour.
    pub style: usize,
    /// All measured points, with increasing x.
    pub points: Vec<[f64; 2]>,
    /// The half-life of the exponential moving average, in points; `None` without one.
    pub half_life: Option<usize>,
    /// Whether only the average is drawn.
    pub is_bare: bool,
    pub look: Look,
}

impl Series {
    pub fn new(name: &str, style: usize, points: Vec<[f64; 2]>) -> Self {
        let gap = |[x, y]: [f64; 2]| [x, if y.abs() <= f64::from(f32::MAX) { y } else { f64::NAN }];
        let points = points.into_iter().filter(|[x, _]| x.abs() <= f64::from(f32::MAX)).map(gap).collect();
        Self { name: name.into(), style, points, ..Self::default() }
    }

    /// The same curve with a moving average; the half-life is a hundredth of the curve.
    pub fn smooth(mut self) -> Self {
        self.half_life = (self.points.len() >= FEW).then(|| self.points.len().div_ceil(100));
        self
    }

    /// The same curve without the points behind the average, which would cover other curves.
    pub fn bare(self) -> Self {
        Self { is_bare: self.half_life.is_some(), ..self }
    }

    /// The points to draw behind the line.
    pub fn background(&self) -> &[[f64; 2]] {
        if self.half_life.is_some() && !self.is_bare { &self.points } else { &[] }
    }

    /// The moving average if there is one, else the points.
    pub fn line(&self) -> Vec<[f64; 2]> {
        self.half_life.map_or_else(|| self.points.clone(), |half_life| moving_average(&self.points, half_life))
    }

    /// The style of its line or marks.
    pub fn ink(&self) -> Ink {
        match self.look {
            Look::Line => Ink::Series(self.style),
            Look::Background => Ink::Faint(self.style),
            Look::Marks | Look::Points | Look::Callout => Ink::Whole(self.style),
            Look::Ideal => Ink::Axis,
        }
    }

    /// Whether the legend names it.
    pub fn is_named(&self) -> bool {
        !matches!(self.look, Look::Background | Look::Callout)
    }

    /// Number of values that are not finite.
    pub fn gaps(&self) -> usize {
        self.points.iter().filter(|[_, y]| y.is_nan()).count()
    }

    /// The first and the last finite value.
    pub fn ends(&self) -> Option<(f64, f64)> {
        let mut values = self.points.iter().map(|[_, y]| *y).filter(|y| y.is_finite());
        let first = values.next()?;
        Some((first, values.next_back().unwrap_or(first)))
    }
}

/// The bias-corrected exponential moving average in which the weight of a point halves every `half_life` points. Gaps
/// stay and do not count.
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

/// The number of consecutive points that are drawn as two; 1 if all are drawn.
pub fn bucket(points: usize) -> usize {
    if points <= MOST { 1 } else { points.div_ceil(MOST / 2) }
}

/// At most [`MOST`] points: of each [`bucket`] the smallest and the largest in order, and a gap if there is one.
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
