//! Exact non-negative least squares for a few terms.
//!
//! The solution is the ordinary one over the terms that are not zero (Lawson and Hanson, Solving Least Squares
//! Problems, 1974, chapter 23). With three terms there are seven such sets: all are tried.

/// Columns with a smaller relative distance from the span of the others count as linearly dependent.
const DEPENDENT: f64 = 1e-7;
/// Sums of squares with a smaller difference count as equal, and the smaller set is taken.
const EQUAL: f64 = 1e-20;

/// The terms at every point, relative to the measured value, because noise grows with the value.
#[derive(Debug, Clone, PartialEq)]
pub struct LeastSquares {
    /// For every term its value at every point, divided by the measured value.
    columns: Vec<Vec<f64>>,
    points: usize,
}

/// Coefficients of all terms and the sum of the squares of the relative residuals.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// One per term; 0 for unused terms.
    pub coefficients: Vec<f64>,
    /// The sum of squares.
    pub residual: f64,
}

/// A QR decomposition: orthonormal columns times an upper triangle.
struct Factors {
    columns: Vec<Vec<f64>>,
    triangle: Vec<Vec<f64>>,
}

impl LeastSquares {
    /// `terms[k][i]` is term `k` at point `i`; `values[i]`, above 0, is the measured value there.
    pub fn new(terms: &[Vec<f64>], values: &[f64]) -> Self {
        let relative = |term: &Vec<f64>| term.iter().zip(values).map(|(term, value)| term / value).collect();
        Self { columns: terms.iter().map(relative).collect(), points: values.len() }
    }

    /// The best solution with at most `most` terms above zero.
    ///
    /// Of sets with `most` terms, the first with a positive solution is used, not the best: selecting the smallest
    /// residual would underestimate the noise.
    pub fn solve(&self, most: usize) -> Solution {
        let positive = |set: &Vec<usize>| {
            let (solution, _) = self.over(set)?;
            set.iter().all(|at| solution.coefficients[*at] > 0.0).then_some(solution)
        };
        let mut best = Solution { coefficients: vec![0.0; self.columns.len()], residual: self.points as f64 };
        for solution in self.sets().iter().filter(|set| set.len() < most).filter_map(positive) {
            if solution.residual + EQUAL < best.residual {
                best = solution;
            }
        }
        let whole = self.sets().iter().filter(|set| set.len() == most).find_map(positive);
        whole.filter(|whole| whole.residual + EQUAL < best.residual).unwrap_or(best)
    }

    /// The smallest and the largest value of `weights` times coefficients, over all coefficients that are not negative
    /// and whose sum of squares is at most `bound`; `None` if there are no such coefficients.
    ///
    /// These coefficients form a convex body. At an extreme of a linear function, the positive terms are at an extreme
    /// of their own ellipsoid, which has a closed form.
    pub fn range(&self, weights: &[f64], bound: f64) -> Option<[f64; 2]> {
        let mut range: Option<[f64; 2]> = None;
        for set in self.sets() {
            let Some((solution, factors)) = self.over(&set) else { continue };
            let slack = bound - solution.residual;
            if slack < 0.0 {
                continue;
            }
            let weights: Vec<f64> = set.iter().map(|at| weights[*at]).collect();
            let forward = factors.solve_transposed(&weights);
            let leverage: f64 = dot(&forward, &forward);
            let direction = factors.solve(&forward);
            let reach = if leverage > 0.0 { (slack / leverage).sqrt() } else { 0.0 };
            for sign in [-reach, 0.0, reach] {
                let moved = set.iter().zip(&direction).map(|(at, by)| solution.coefficients[*at] + sign * by);
                let moved: Vec<f64> = moved.collect();
                if moved.iter().all(|it| *it >= 0.0) {
                    let value = dot(&weights, &moved);
                    let [low, high] = range.unwrap_or([value, value]);
                    range = Some([low.min(value), high.max(value)]);
                }
            }
        }
        range
    }

    /// All sets of terms, the smallest first.
    fn sets(&self) -> Vec<Vec<usize>> {
        let terms = self.columns.len();
        let members = |set: usize| (0..terms).filter(|at| set >> at & 1 == 1).collect::<Vec<_>>();
        let mut sets: Vec<Vec<usize>> = (1..1 << terms).map(members).collect();
        sets.sort_by_key(|set| (set.len(), set.clone()));
        sets
    }

    /// The ordinary solution over a set of terms; `None` if they are linearly dependent.
    fn over(&self, set: &[usize]) -> Option<(Solution, Factors)> {
        let factors = Factors::new(set.iter().map(|at| self.columns[*at].clone()).collect())?;
        let mut rest = vec![1.0; self.points];
        let projected: Vec<f64> = factors.columns.iter().map(|column| subtract_projection(&mut rest, column)).collect();
        let mut coefficients = vec![0.0; self.columns.len()];
        set.iter().zip(factors.solve(&projected)).for_each(|(at, value)| coefficients[*at] = value);
        Some((Solution { coefficients, residual: dot(&rest, &rest) }, factors))
    }
}

impl Factors {
    /// By modified Gram-Schmidt (Björck, Numerical Methods for Least Squares Problems, 1996, section 2.4).
    fn new(columns: Vec<Vec<f64>>) -> Option<Self> {
        let count = columns.len();
        let mut factors = Self { columns: Vec::new(), triangle: vec![vec![0.0; count]; count] };
        for (at, mut column) in columns.into_iter().enumerate() {
            let whole = dot(&column, &column).sqrt();
            for (row, earlier) in factors.columns.iter().enumerate() {
                factors.triangle[row][at] = subtract_projection(&mut column, earlier);
            }
            let rest = dot(&column, &column).sqrt();
            if rest <= DEPENDENT * whole {
                return None;
            }
            column.iter_mut().for_each(|it| *it /= rest);
            factors.triangle[at][at] = rest;
            factors.columns.push(column);
        }
        Some(factors)
    }

    fn solve(&self, right: &[f64]) -> Vec<f64> {
        let mut solution = right.to_vec();
        for row in (0..right.len()).rev() {
            let known: f64 = (row + 1..right.len()).map(|at| self.triangle[row][at] * solution[at]).sum();
            solution[row] = (solution[row] - known) / self.triangle[row][row];
        }
        solution
    }

    fn solve_transposed(&self, right: &[f64]) -> Vec<f64> {
        let mut solution = right.to_vec();
        for row in 0..right.len() {
            let known: f64 = (0..row).map(|at| self.triangle[at][row] * solution[at]).sum();
            solution[row] = (solution[row] - known) / self.triangle[row][row];
        }
        solution
    }
}

/// Removes the projection on the unit vector `along` from `of`, and returns its length.
fn subtract_projection(of: &mut [f64], along: &[f64]) -> f64 {
    let part = dot(of, along);
    of.iter_mut().zip(along).for_each(|(it, unit)| *it -= part * unit);
    part
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
