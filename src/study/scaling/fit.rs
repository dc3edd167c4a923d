//! The model fitted to measured step times, with confidence ranges.
//!
//! Residuals are relative, and coefficients are not negative. There are fewer terms than sizes if possible, because a
//! model with as many terms as sizes fits every measurement and proves nothing.
//!
//! A range is a confidence interval at a level of 95 %: its ends are the extremes over all coefficients of all terms,
//! including those left out, whose sum of squares exceeds that of the best fit by at most F(1, d) times the variance of
//! the residuals, with d degrees of freedom (Seber and Lee, Linear Regression Analysis, 2003, section 5.1). It is about
//! the typical step, not about a single one.

use serde::Serialize;

use super::least_squares::LeastSquares;
use super::measurement::Mode;
use super::model::Term;

/// Student's t for a two-sided level of 95 %, by degrees of freedom from 1; more than ten count as ten.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
/// Largest sum of squared relative residuals of a meaningful bound.
const MOST_RESIDUAL: f64 = 1.0;
/// Bisections for six digits of the serial fraction.
const HALVINGS: usize = 20;

/// A number with its confidence range at a level of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The best estimate.
    pub value: f64,
    /// The range; `None` if the measurements do not determine it.
    pub range: Option<[f64; 2]>,
}

/// A fitted model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// The model.
    pub mode: Mode,
    /// The numbers of replicas it was fitted to.
    pub replicas: Vec<usize>,
    /// The coefficients of [`Mode::terms`], in seconds.
    pub coefficients: Vec<f64>,
    /// The terms that were left out because there are too few sizes to determine them.
    pub left_out: Vec<Term>,
    /// Root mean square of the relative residuals.
    pub misses_by: f64,
    /// Number of points minus number of terms.
    pub degrees_of_freedom: usize,
    /// The times in the formula, in seconds, by their symbols.
    pub parameters: Vec<(&'static str, Estimate)>,
    /// The serial share of the work; only for strong scaling.
    pub serial_fraction: Option<Estimate>,
    #[serde(skip)]
    squares: LeastSquares,
    /// The largest sum of squares at a level of 95 %; `None` if the measurements do not determine it.
    #[serde(skip)]
    bound: Option<f64>,
}

impl Fit {
    /// Fits the model of a mode to numbers of replicas and their step times in seconds. `None` for fewer than two
    /// sizes, or if a time is not finite and above 0.
    pub fn new(mode: Mode, points: &[(usize, f64)]) -> Option<Self> {
        let mut replicas: Vec<usize> = points.iter().map(|(replicas, _)| *replicas).collect();
        replicas.sort_unstable();
        replicas.dedup();
        let believed = points.iter().all(|(replicas, seconds)| *replicas > 0 && seconds.is_normal() && *seconds > 0.0);
        if replicas.len() < 2 || !believed {
            return None;
        }
        let most = (replicas.len() - 1).clamp(2, mode.terms().len());
        let values: Vec<f64> = points.iter().map(|(_, seconds)| *seconds).collect();
        let column = |term: Term| points.iter().map(|(replicas, _)| term.at(*replicas as f64)).collect();
        let squares = LeastSquares::new(&mode.terms().map(column), &values);
        let solution = squares.solve(most);

        let used = solution.coefficients.iter().filter(|it| **it > 0.0).count();
        let zero = mode.terms().into_iter().zip(&solution.coefficients).filter(|(_, it)| **it == 0.0);
        let left_out = if used == most { zero.map(|(term, _)| term).collect() } else { Vec::new() };
        let degrees_of_freedom = points.len() - most;
        let mut fit = Self {
            mode,
            replicas,
            left_out,
            misses_by: (solution.residual / points.len() as f64).sqrt(),
            degrees_of_freedom,
            coefficients: solution.coefficients,
            parameters: Vec::new(),
            serial_fraction: None,
            bound: bound(solution.residual, degrees_of_freedom).filter(|bound| *bound < MOST_RESIDUAL),
            squares,
        };
        let named = mode.parameters().into_iter().map(|(symbol, _, weights)| (symbol, fit.sum(&weights)));
        fit.parameters = named.collect();
        fit.serial_fraction = (mode == Mode::Strong).then(|| fit.serial_fraction());
        Some(fit)
    }

    /// The step time for a number of replicas, in seconds.
    pub fn step_seconds(&self, replicas: f64) -> Estimate {
        self.sum(&self.mode.terms().map(|term| term.at(replicas)))
    }

    /// Whether it has confidence ranges.
    pub fn has_error(&self) -> bool {
        self.bound.is_some()
    }

    /// Remarks about its terms and ranges, a sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let (sizes, terms) = (self.replicas.len(), self.mode.terms().len());
        let misses = match self.degrees_of_freedom {
            0 => String::new(),
            _ => format!(" and misses their steps by {:.1} % (root mean square)", 100.0 * self.misses_by),
        };
        let mut remarks = vec![format!("The model was fitted to {sizes} sizes{misses}.")];
        if !self.left_out.is_empty() {
            let names: Vec<&str> = self.left_out.iter().map(|term| term.symbol(self.mode)).collect();
            let used = terms - names.len();
            remarks.push(format!(
                "{sizes} sizes are enough for {used} of its {terms} terms; left out: {}.",
                names.join(", ")
            ));
        }
        remarks.push(if self.bound.is_some() {
            "Ranges contain the typical step with a confidence of 95 %, provided that the model holds.".into()
        } else if self.degrees_of_freedom == 0 {
            "No error can be estimated: a model with as many terms as sizes meets all of them. Measure three sizes or \
             more."
                .into()
        } else {
            "No error can be estimated: the model misses the measurements by too much for so few sizes.".into()
        });
        remarks
    }

    fn sum(&self, weights: &[f64]) -> Estimate {
        let value = weights.iter().zip(&self.coefficients).map(|(weight, it)| weight * it).sum();
        Estimate { value, range: self.bound.and_then(|bound| self.squares.range(weights, bound)) }
    }

    /// Constant / (constant + shared). The ends of its range are found by bisection: the quotient may be below `f` if
    /// constant - f (constant + shared) may be below zero.
    fn serial_fraction(&self) -> Estimate {
        let [constant, shared] = [self.coefficients[0], self.coefficients[1]];
        let end = |upper: bool| {
            let (mut low, mut high) = (0.0, 1.0);
            for _ in 0..HALVINGS {
                let middle: f64 = (low + high) / 2.0;
                let range = self.sum(&[1.0 - middle, -middle, 0.0]).range?;
                let is_above = if upper { range[1] > 0.0 } else { range[0] > 0.0 };
                if is_above {
                    low = middle
                } else {
                    high = middle
                };
            }
            Some(if upper { high } else { low })
        };
        let value = if constant + shared > 0.0 { constant / (constant + shared) } else { 1.0 };
        Estimate { value, range: end(false).zip(end(true)).map(|(low, high)| [low.min(value), high.max(value)]) }
    }
}

fn bound(residual: f64, degrees_of_freedom: usize) -> Option<f64> {
    let student = STUDENT[degrees_of_freedom.checked_sub(1)?.min(STUDENT.len() - 1)];
    Some(residual * (1.0 + student * student / degrees_of_freedom as f64))
}
