//! Successive halving (Jamieson and Talwalkar, 2016): all points train for a short while, and the best of them
//! continue.

/// A part of a sweep: these many points train until this share of their epochs is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rung {
    pub points: usize,
    /// All epochs are this many times as many.
    pub divisor: usize,
}

impl Rung {
    /// The epoch, from 1, after which a point with `epochs` epochs pauses.
    pub fn ends_after(self, epochs: usize) -> usize {
        epochs.div_ceil(self.divisor)
    }
}

/// The rungs for `points` points with at least `epochs` epochs each; the last rung has all epochs. One point in
/// `factor` continues in the next rung, for `factor` times as many epochs. A `factor` of `None` means one rung with all
/// points.
pub fn rungs(points: usize, epochs: usize, factor: Option<usize>) -> Vec<Rung> {
    let mut rungs = vec![Rung { points, divisor: 1 }];
    let Some(factor) = factor.filter(|factor| *factor > 1) else { return rungs };
    let (mut left, mut divisor) = (points, factor);
    while left >= factor && epochs >= divisor {
        rungs.iter_mut().for_each(|rung| rung.divisor *= factor);
        (left, divisor) = (left / factor, divisor * factor);
        rungs.push(Rung { points: left, divisor: 1 });
    }
    rungs
}

/// The places of the `count` highest accuracies, in order; of equal ones the first. One that is `None` is never among
/// them.
pub fn best(accuracies: &[Option<f64>], count: usize) -> Vec<usize> {
    let mut ranked: Vec<_> = accuracies.iter().enumerate().filter_map(|(at, it)| Some((at, (*it)?))).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut places: Vec<usize> = ranked.into_iter().take(count).map(|(at, _)| at).collect();
    places.sort_unstable();
    places
}
