//! Fast sums of f32 values: up to 64 terms per f32 partial sum, partial sums added in f64.

/// Partial sums side by side: what the widest registers hold.
const WIDTH: usize = 16;
/// Values per run, which is summed in f32.
const RUN: usize = 1024;

pub(super) fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    values.chunks(RUN).map(|run| sum_of_run(run, &term)).sum()
}

fn sum_of_run(values: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    let (chunks, rest) = values.as_chunks::<WIDTH>();
    let mut sums = [0.0_f32; WIDTH];
    for chunk in chunks {
        for i in 0..WIDTH {
            sums[i] += term(chunk[i]);
        }
    }
    let rest: f32 = rest.iter().map(|value| term(*value)).sum();
    sums.into_iter().map(f64::from).sum::<f64>() + f64::from(rest)
}
