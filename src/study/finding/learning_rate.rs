//! The learning-rate range test: a run whose rate grows exponentially, and the rate that its losses suggest.
//!
//! L. N. Smith, Cyclical Learning Rates for Training Neural Networks, WACV 2017 (arXiv 1506.01186), with the practice of
//! fastai and Lightning: losses are averaged ([`super::curve`]), the first are passed over, and the test ends where the
//! loss runs away.
//!
//! Two rules of thumb are shown, and one is recommended: **a tenth of the rate at which the loss was smallest**. The
//! rate of the steepest fall depends on where the loss starts: a fresh network first loses what its loss has above that
//! of guessing, at whatever small rate it has then. In sixteen tests of a small residual network, eight seeds with two
//! batch sizes (`tests/fixtures/finding/range.py`), the steepest fall was anywhere from 0.0002 to 0.5. The tenth of the
//! minimum varied by a factor of ten for a batch size, and up to three times as much or as little held a rate whose loss
//! after a real training was within a tenth of the best. That is one small network: try the ends of the range too.
//!
//! A test that proves nothing suggests nothing, and says what to do. Rates are those that the optimizer used, for all
//! replicas together. This room makes no run.

use serde::{Deserialize, Serialize};

use super::curve::{Curve, Probe};
use crate::error::{Error, Result};

/// A shorter test says nothing.
const FEWEST: usize = 20;
/// The first half-lives are passed over: their average is that of few steps.
const PASSED_OVER: usize = 2;
/// A difference of averaged losses by so many standard deviations is no accident, wherever it is on the curve.
const CERTAIN: f64 = 8.0;
/// A fall is one by this part of the loss at least.
const LEAST_FALL: f64 = 0.02;
/// The loss has turned when it rose by this part of its fall.
const LEAST_RISE: f64 = 0.1;
/// The recommended rate is so many times below that of the smallest loss.
const SAFETY: f64 = 10.0;
/// Tests of different seeds differ by a factor of ten, about three to each side.
const UNCERTAINTY: f64 = 3.0;

/// A range test and what follows from it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RangeTest {
    /// Every step.
    pub probes: Vec<Probe>,
    /// The averaged curve, until the loss ran away.
    pub averaged: Vec<Probe>,
    /// The first rate that is left out, if the loss ran away.
    pub cut_off: Option<f64>,
    /// What `schedule.lr_scaling` multiplies `--learning-rate` with.
    pub growth: f64,
    /// The rates to use, or why there are none.
    #[serde(skip)]
    pub verdict: std::result::Result<Suggestion, NoSuggestion>,
}

/// Rates that a test suggests, for all replicas together unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    /// Where the averaged loss falls fastest over the logarithm of the rate.
    pub steepest: f64,
    /// How fast it falls there, as loss per decade of the rate; negative.
    pub slope: f64,
    /// Where the averaged loss is smallest.
    pub minimum: f64,
    /// A tenth of that.
    pub tenth: f64,
    /// The value for `--learning-rate`: the tenth before the schedule's scaling, with two digits.
    pub learning_rate: f64,
    /// What the optimizer then uses: `learning_rate` times the scaling.
    pub effective: f64,
    /// From a third of it to three times as much.
    pub range: [f64; 2],
}

/// Why a test suggests nothing. Its `Display` says what to do.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NoSuggestion {
    /// Too few steps.
    #[error("{steps} steps are too few to tell a fall of the loss from chance; try --steps 100")]
    TooFew {
        /// Steps of the test.
        steps: usize,
    },
    /// The loss ran away before there was anything to see.
    #[error("the loss diverged after {steps} steps; start lower, with --from {}", shown(*from))]
    RanAway {
        /// Steps until then.
        steps: usize,
        /// A rate to begin with.
        from: f64,
    },
    /// The loss rose, and did not fall before, or no more than it does by chance.
    #[error("the loss did not fall by more than chance before it rose; \
             try more steps with --steps {steps}, or begin lower with --from {}", shown(*from))]
    Rose {
        /// A rate to begin with.
        from: f64,
        /// A number of steps.
        steps: usize,
    },
    /// The loss neither fell nor rose.
    #[error("the loss never fell; try a wider range with --to {}, or more steps with --steps {steps}", shown(*to))]
    Flat {
        /// A rate to end with.
        to: f64,
        /// A number of steps.
        steps: usize,
    },
    /// The loss had not risen yet.
    #[error("the loss was still falling at the highest rate; try --to {}", shown(*to))]
    StillFalling {
        /// A rate to end with.
        to: f64,
    },
}

impl RangeTest {
    /// Reads a test: `probes` in the order of steps, and how much `schedule.lr_scaling` multiplies `--learning-rate`.
    ///
    /// # Errors
    /// [`Error::Data`] if the rates do not grow from above 0, or the growth is not a number above 0.
    pub fn new(probes: &[Probe], growth: f64) -> Result<Self> {
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        if let Some(step) = probes.iter().position(|it| !is_rate(it.rate)) {
            let rate = probes[step].rate;
            return Err(Error::Data(format!("the range test has a learning rate of '{rate}'; give --from above 0")));
        }
        if let Some(step) = probes.windows(2).position(|two| two[0].rate >= two[1].rate) {
            let step = step + 2;
            return Err(Error::Data(format!(
                "the learning rate of the range test does not grow in step {step}; give --to above --from"
            )));
        }
        if !is_rate(growth) {
            return Err(Error::Data(format!("a learning rate cannot be scaled by '{growth}'; give a number above 0")));
        }
        let curve = Curve::new(probes);
        let verdict = suggest(probes, &curve, growth);
        let Curve { points, cut_off, .. } = curve;
        Ok(Self { probes: probes.to_vec(), averaged: points, cut_off, growth, verdict })
    }
}

fn suggest(probes: &[Probe], curve: &Curve, growth: f64) -> std::result::Result<Suggestion, NoSuggestion> {
    let (steps, points) = (probes.len(), &curve.points);
    if steps < FEWEST {
        return Err(NoSuggestion::TooFew { steps });
    }
    let (lower, higher) = (two_digits(probes[0].rate / 100.0), two_digits(probes[steps - 1].rate * 10.0));
    let first = PASSED_OVER * curve.half_life;
    if points.len() <= 2 * first {
        return Err(NoSuggestion::RanAway { steps: points.len(), from: lower });
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
        let has_risen = has_run_away || rise > least_fall;
        let flat = NoSuggestion::Flat { to: higher, steps: 2 * steps };
        return Err(if has_risen { NoSuggestion::Rose { from: lower, steps: 2 * steps } } else { flat });
    }
    if !has_run_away && rise <= chance.max(LEAST_RISE * fall) {
        return Err(NoSuggestion::StillFalling { to: higher });
    }
    let (steepest, slope) = curve.steepest(first, least).unwrap_or((least, 0.0));
    let tenth = points[least].rate / SAFETY;
    let learning_rate = two_digits(tenth / growth);
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

/// A number rounded to two digits, more than a range test knows.
fn two_digits(value: f64) -> f64 {
    shown(value).parse().unwrap_or(value)
}

/// Two digits of a rate as they are shown, and can be given to a flag.
pub fn shown(rate: f64) -> String {
    let rounded: f64 = format!("{rate:.1e}").parse().unwrap_or(rate);
    if (1e-4..1e5).contains(&rounded.abs()) { rounded.to_string() } else { format!("{rounded:e}") }
}
