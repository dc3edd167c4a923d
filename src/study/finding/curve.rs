//! The averaged curve of a range test up to divergence, and the noise of its losses.
//!
//! Loss and logarithm of the rate are averaged with the same weights. Both then lag equally, so that a linear fall of
//! the loss keeps its position.

use serde::{Deserialize, Serialize};

use crate::report::series::moving_average;

/// The half-life is the run divided by this: 4 of 100 steps. fastai's decay of 0.98 would be a half-life of 34 steps,
/// too long to follow the fall.
const PARTS: usize = 25;
/// The test ends if the averaged loss exceeds this multiple of its minimum, as in fastai.
const RUNAWAY: f64 = 4.0;
/// The median absolute value of a standard normal deviate.
const MEDIAN_DEVIATE: f64 = 0.6745;

/// A step of the test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub rate: f64,
    /// Its loss; not finite where the run diverged.
    pub loss: f64,
}

pub(super) struct Curve {
    /// Averaged rates and losses of the steps before divergence.
    pub(super) points: Vec<Probe>,
    /// Half-life of the average, in steps.
    pub(super) half_life: usize,
    /// The first excluded rate, if the loss diverged.
    pub(super) cut_off: Option<f64>,
    /// Standard deviation of an averaged loss, from the differences of neighbouring losses.
    pub(super) noise: f64,
}

impl Curve {
    /// Averages the losses until they diverge: until one is not finite, or the average exceeds four times its minimum.
    pub(super) fn new(probes: &[Probe]) -> Self {
        let half_life = (probes.len() / PARTS).max(1);
        let finite = probes.iter().position(|it| !is_loss(it.loss)).unwrap_or(probes.len());
        let average = |of: fn(&Probe) -> f64| {
            let values: Vec<[f64; 2]> = probes[..finite].iter().map(|it| [0.0, of(it)]).collect();
            moving_average(&values, half_life).into_iter().map(|[_, mean]| mean)
        };
        let mut points: Vec<Probe> = average(|it| it.rate.ln())
            .zip(average(|it| it.loss))
            .map(|(log_rate, loss)| Probe { rate: log_rate.exp(), loss })
            .collect();
        let mut least = f64::INFINITY;
        let runs_away = |it: &Probe| {
            least = least.min(it.loss);
            least > 0.0 && it.loss > RUNAWAY * least
        };
        points.truncate(points.iter().position(runs_away).unwrap_or(finite));
        let cut_off = probes.get(points.len()).map(|it| it.rate);
        let noise = noise(&probes[..points.len()], half_life);
        Self { points, half_life, cut_off, noise }
    }

    /// The point of the steepest fall from `first` to `last`, and the slope there: loss per natural logarithm of the
    /// rate, over a half-life to both sides.
    pub(super) fn steepest(&self, first: usize, last: usize) -> Option<(usize, f64)> {
        let slope = |at: usize| {
            let ends = [at.saturating_sub(self.half_life), (at + self.half_life).min(self.points.len() - 1)];
            let [before, after] = ends.map(|end| self.points[end]);
            (at, (after.loss - before.loss) / (after.rate / before.rate).ln())
        };
        (first..=last.min(self.points.len().checked_sub(1)?)).map(slope).min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Whether a run can have this loss: it is finite as an f32.
fn is_loss(loss: f64) -> bool {
    loss.abs() <= f64::from(f32::MAX)
}

/// Neighbouring losses differ mainly by noise; the median ignores the few where the curve is steep. An average with
/// decay `b` has (1 - b) / (1 + b) of the variance of its terms.
fn noise(probes: &[Probe], half_life: usize) -> f64 {
    let mut differences: Vec<f64> = probes.windows(2).map(|two| (two[1].loss - two[0].loss).abs()).collect();
    differences.sort_by(f64::total_cmp);
    let median = differences.get(differences.len() / 2).copied().unwrap_or(0.0);
    let decay = 0.5f64.powf(1.0 / half_life as f64);
    median / MEDIAN_DEVIATE * ((1.0 - decay) / (1.0 + decay) / 2.0).sqrt()
}
