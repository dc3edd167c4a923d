//! The learning-rate range test: a run with an exponentially growing rate, and the rate that its losses suggest.
//!
//! L. N. Smith, Cyclical Learning Rates for Training Neural Networks, WACV 2017 (arXiv 1506.01186), with the practice
//! of fastai and Lightning: losses are averaged ([`super::curve`]), the first ones are skipped, and the test ends if
//! the loss diverges.
//!
//! Two rules of thumb are shown, and one is recommended: **a tenth of the rate with the smallest loss**. The rate of
//! the steepest fall depends on the initial loss: a new network first drops to the loss of guessing, at whatever small
//! rate the test has then. In sixteen tests of a small residual network, eight seeds with two batch sizes
//! (`tests/fixtures/finding/range.py`), the steepest fall was anywhere from 0.0002 to 0.5. A tenth of the minimum
//! varied by a factor of ten for a batch size; the range from a third to three times of it contained a rate whose loss
//! after a full training was within a tenth of the best. That is one small network: try the ends of the range too.
//!
//! An inconclusive test suggests nothing and says what to do. Rates are those of the optimizer, for all replicas
//! together.

use kiln_system::{Error, Result};
use serde::{Deserialize, Serialize};

use super::curve::{Curve, Probe};

const FEWEST: usize = 20;
/// Half-lives that are skipped at the start, where the average has few terms.
const PASSED_OVER: usize = 2;
/// A significant difference of averaged losses, in standard deviations.
const CERTAIN: f64 = 8.0;
/// The smallest fall, as a share of the loss.
const LEAST_FALL: f64 = 0.02;
/// The smallest rise after the minimum, as a share of the fall.
const LEAST_RISE: f64 = 0.1;
/// The ratio of the rate of the smallest loss to the recommended rate.
const SAFETY: f64 = 10.0;
/// Tests with different seeds differ by a factor of ten, about three to each side.
const UNCERTAINTY: f64 = 3.0;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RangeTest {
    pub probes: Vec<Probe>,
    /// The averaged curve, until the loss diverged.
    pub averaged: Vec<Probe>,
    /// The first excluded rate, if the loss diverged.
    pub cut_off: Option<f64>,
    /// The factor of `schedule.lr_scaling` on `--learning-rate`.
    pub growth: f64,
    /// The suggested rates, or the reason why there are none and what to do.
    #[serde(skip)]
    pub verdict: std::result::Result<Suggestion, String>,
}

/// Suggested rates, for all replicas together unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    /// The rate of the steepest fall of the averaged loss over the logarithm of the rate.
    pub steepest: f64,
    /// The slope there, as loss per decade of the rate; negative.
    pub slope: f64,
    /// The rate of the smallest averaged loss.
    pub minimum: f64,
    /// A tenth of `minimum`.
    pub tenth: f64,
    /// The value for `--learning-rate`: `tenth` before the schedule's scaling, with two digits.
    pub learning_rate: f64,
    /// The optimizer's rate: `learning_rate` times the scaling.
    pub effective: f64,
    /// A third of `effective` to three times `effective`.
    pub range: [f64; 2],
}

impl RangeTest {
    /// Evaluates a test: `probes` in the order of steps, and the factor of `schedule.lr_scaling` on `--learning-rate`.
    ///
    /// # Errors
    /// [`Error::Data`] if the rates do not grow.
    pub fn new(probes: &[Probe], growth: f64) -> Result<Self> {
        if let Some(step) = probes.windows(2).position(|two| two[0].rate >= two[1].rate) {
            let step = step + 2;
            return Err(Error::Data(format!(
                "the learning rate of the range test does not grow in step {step}; give --to above --from"
            )));
        }
        let curve = Curve::new(probes);
        let verdict = suggest(probes, &curve, growth);
        let Curve { points, cut_off, .. } = curve;
        Ok(Self { probes: probes.to_vec(), averaged: points, cut_off, growth, verdict })
    }
}

fn suggest(probes: &[Probe], curve: &Curve, growth: f64) -> std::result::Result<Suggestion, String> {
    let (steps, points) = (probes.len(), &curve.points);
    if steps < FEWEST {
        return Err(format!("{steps} steps are too few to tell a falling loss from noise; try --steps 100"));
    }
    let (lower, higher) = (shown(probes[0].rate / 100.0), shown(probes[steps - 1].rate * 10.0));
    let first = PASSED_OVER * curve.half_life;
    if points.len() <= 2 * first {
        return Err(format!("the loss diverged after {} steps; start lower, with --from {lower}", points.len()));
    }
    let loss = |at: usize| points[at].loss;
    let highest = |from: usize, to: usize| (from..to).map(loss).fold(f64::NEG_INFINITY, f64::max);
    let least = (first..points.len()).min_by(|a, b| loss(*a).total_cmp(&loss(*b))).unwrap_or(first);
    let fall = highest(first, least + 1) - loss(least);
    let rise = highest(least, points.len()) - loss(least);
    let has_run_away = curve.cut_off.is_some();
    let chance = CERTAIN * curve.noise;
    let least_fall = chance.max(LEAST_FALL * loss(first).abs());
    if fall <= least_fall {
        let more = format!("more steps with --steps {}", 2 * steps);
        return Err(if has_run_away || rise > least_fall {
            format!(
                "the loss did not fall by more than noise before it rose; try {more}, or start lower with --from \
                 {lower}"
            )
        } else {
            format!("the loss never fell; try a wider range with --to {higher}, or {more}")
        });
    }
    if !has_run_away && rise <= chance.max(LEAST_RISE * fall) {
        return Err(format!("the loss was still falling at the highest rate; try --to {higher}"));
    }
    let (steepest, slope) = curve.steepest(first, least).unwrap_or((least, 0.0));
    let tenth = points[least].rate / SAFETY;
    // Two digits, more than the precision of a range test.
    let learning_rate = shown(tenth / growth).parse().unwrap_or(tenth / growth);
    let effective = learning_rate * growth;
    Ok(Suggestion {
        steepest: points[steepest].rate,
        slope: slope * std::f64::consts::LN_10,
        minimum: points[least].rate,
        tenth,
        learning_rate,
        effective,
        range: [effective / UNCERTAINTY, effective * UNCERTAINTY],
    })
}

/// A rate with two digits, in a form that a flag accepts.
pub(super) fn shown(rate: f64) -> String {
    let rounded: f64 = format!("{rate:.1e}").parse().unwrap_or(rate);
    if (1e-4..1e5).contains(&rounded.abs()) { rounded.to_string() } else { format!("{rounded:e}") }
}
