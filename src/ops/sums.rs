//! Sums over the host's memory, fast and exact enough to be taken as exact.
//!
//! They run in f32, sixteen at a time and for a thousand values at most, and from there on in f64: as exact as f64
//! throughout to within f32's rounding of the terms.

/// Partial sums side by side: what the widest registers hold.
const WIDTH: usize = 16;
/// Values that are added up in f32.
const RUN: usize = 1024;

/// The sum of `term` over all values.
pub(super) fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    sum_of_pairs(values, values, |value, _| term(value))
}

/// The sum of `term` over all pairs of values.
pub(super) fn sum_of_pairs(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f64 {
    a.chunks(RUN).zip(b.chunks(RUN)).map(|(a, b)| run(a, b, &term)).sum()
}

/// A sum of at most [`RUN`] terms.
fn run(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<WIDTH>(), b.as_chunks::<WIDTH>());
    let mut sums = [0.0_f32; WIDTH];
    for (a, b) in a.iter().zip(b) {
        for i in 0..WIDTH {
            sums[i] += term(a[i], b[i]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| term(*a, *b)).sum();
    sums.into_iter().map(f64::from).sum::<f64>() + f64::from(rest)
}
