//! Models: known coefficients are found again, and ranges hold what they promise.

use kiln::study::scaling::Mode;
use kiln::study::scaling::fit::Fit;
use kiln::study::scaling::least_squares::LeastSquares;
use kiln::study::scaling::model::Term;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Normal, Uniform};

fn time(mode: Mode, coefficients: [f64; 3], replicas: usize) -> f64 {
    let p = replicas as f64;
    let [a, b, c] = coefficients;
    match mode {
        Mode::Weak => a + b * p.log2() + c * 2.0 * (p - 1.0) / p,
        Mode::Strong => a + b / p + c * p.log2(),
    }
}

fn points(mode: Mode, coefficients: [f64; 3], sizes: &[usize]) -> Vec<(usize, f64)> {
    sizes.iter().map(|replicas| (*replicas, time(mode, coefficients, *replicas))).collect()
}

fn noisy(points: &[(usize, f64)], noise: f64, rng: &mut ChaCha8Rng) -> Vec<(usize, f64)> {
    let normal = Normal::new(1.0, noise).unwrap();
    points.iter().map(|(replicas, seconds)| (*replicas, seconds * normal.sample(rng))).collect()
}

fn close(a: f64, b: f64, part: f64) -> bool {
    (a - b).abs() <= part * b.abs()
}

#[test]
fn coefficients_without_noise_are_found_exactly() {
    for mode in [Mode::Weak, Mode::Strong] {
        for coefficients in [[0.2, 0.01, 0.03], [0.2, 0.01, 0.0], [0.2, 0.0, 0.03], [0.2, 0.0, 0.0], [1e-6, 3e-6, 2e-7]]
        {
            let fit = Fit::new(mode, &points(mode, coefficients, &[1, 2, 4, 8, 16])).unwrap();
            for (found, true_one) in fit.coefficients.iter().zip(coefficients) {
                assert!((found - true_one).abs() < 1e-9 * coefficients[0], "{mode} {coefficients:?}: {fit:?}");
            }
            let [low, high] = fit.step_seconds(64.0).range.unwrap();
            assert!(close(low, time(mode, coefficients, 64), 1e-6) && close(high, low, 1e-6), "nothing is unsure");
            assert!(fit.left_out.is_empty() && fit.misses_by < 1e-9);
        }
    }
}

#[test]
fn coefficients_are_found_behind_noise() {
    let rng = &mut ChaCha8Rng::seed_from_u64(1);
    let sizes: Vec<usize> = (1..=64).collect();
    for (mode, coefficients) in [(Mode::Weak, [0.2, 0.02, 0.05]), (Mode::Strong, [0.1, 1.5, 0.02])] {
        let fit = Fit::new(mode, &noisy(&points(mode, coefficients, &sizes), 0.01, rng)).unwrap();
        for (found, true_one) in fit.coefficients.iter().zip(coefficients) {
            assert!(close(*found, true_one, 0.2), "{mode}: {:?}", fit.coefficients);
        }
        assert!(close(fit.misses_by, 0.01, 0.4), "{}", fit.misses_by);
    }
}

/// Coefficients and sums of squares from NumPy: `min |Ax - 1|` over `x >= 0` by a million steps of projected gradient
/// descent, for the times in the test below.
const REFERENCE_WEAK: ([f64; 3], f64) = ([0.191874291, 0.008303087, 0.003093594], 1.227982200e-04);
const REFERENCE_STRONG: ([f64; 3], f64) = ([0.000000000, 0.811040228, 0.017340208], 1.877549307e-03);
const REFERENCE_FLAT: ([f64; 3], f64) = ([0.194913662, 0.000000000, 0.000000000], 1.398802774e-02);

#[test]
fn the_fit_is_that_of_another_method() {
    let sizes = [1, 2, 4, 8, 16];
    let cases = [
        (Mode::Weak, [0.1923, 0.2017, 0.2144, 0.2229, 0.2301], REFERENCE_WEAK),
        (Mode::Strong, [0.8012, 0.4311, 0.2402, 0.1487, 0.1219], REFERENCE_STRONG),
        (Mode::Weak, [0.20, 0.19, 0.21, 0.18, 0.20], REFERENCE_FLAT),
    ];
    for (mode, times, (coefficients, residual)) in cases {
        let fit = Fit::new(mode, &sizes.into_iter().zip(times).collect::<Vec<_>>()).unwrap();
        for (found, reference) in fit.coefficients.iter().zip(coefficients) {
            assert!((found - reference).abs() < 1e-6, "{mode}: {:?} is not {coefficients:?}", fit.coefficients);
        }
        assert!(close(5.0 * fit.misses_by.powi(2), residual, 1e-4), "{mode}");
    }
}

#[test]
fn the_limit_of_amdahl_is_one_over_the_serial_fraction() {
    let serial = 0.05;
    let fit = Fit::new(Mode::Strong, &points(Mode::Strong, [serial, 1.0 - serial, 0.0], &[1, 2, 4, 8])).unwrap();
    let speed_up = |replicas: f64| fit.step_seconds(1.0).value / fit.step_seconds(replicas).value;
    assert!(close(fit.serial_fraction.unwrap().value, serial, 1e-9));
    assert!(close(speed_up(16.0), 1.0 / (serial + (1.0 - serial) / 16.0), 1e-9));
    assert!(close(speed_up(1e12), 20.0, 1e-6), "{}", speed_up(1e12));
    for (coefficients, serial) in [([0.0, 1.0, 0.0], 0.0), ([1.0, 0.0, 0.0], 1.0)] {
        let fit = Fit::new(Mode::Strong, &points(Mode::Strong, coefficients, &[1, 2, 4, 8])).unwrap();
        let fraction = fit.serial_fraction.unwrap();
        assert!((fraction.value - serial).abs() < 1e-9 && (fraction.range.unwrap()[1] - serial).abs() < 1e-5);
    }
}

#[test]
fn the_symbols_of_the_formula_give_the_fitted_time() {
    let weak = Fit::new(Mode::Weak, &points(Mode::Weak, [0.2, 0.01, 0.03], &[1, 2, 4, 8])).unwrap();
    let [t1, alpha, beta] = [0, 1, 2].map(|at| weak.parameters[at].1.value);
    assert!(close(t1 + alpha * 5.0 + beta * 2.0 * 31.0 / 32.0, weak.step_seconds(32.0).value, 1e-12));
    let strong = Fit::new(Mode::Strong, &points(Mode::Strong, [0.2, 0.8, 0.03], &[1, 2, 4, 8])).unwrap();
    let ([t1, alpha], s) = ([0, 1].map(|at| strong.parameters[at].1.value), strong.serial_fraction.unwrap().value);
    assert!(close(t1 * (s + (1.0 - s) / 32.0) + alpha * 5.0, strong.step_seconds(32.0).value, 1e-12));
    assert!(close(t1, 1.0, 1e-9) && close(s, 0.2, 1e-9) && close(alpha, 0.03, 1e-9));
}

#[test]
fn terms_are_given_up_where_sizes_are_too_few_and_no_error_is_made_up() {
    let fit = |sizes: &[usize]| Fit::new(Mode::Weak, &points(Mode::Weak, [0.2, 0.01, 0.0], sizes));
    assert!(fit(&[]).is_none() && fit(&[4]).is_none() && fit(&[4, 4]).is_none());

    let two = fit(&[1, 2]).unwrap();
    assert_eq!((two.left_out.as_slice(), two.degrees_of_freedom), (&[Term::Ring][..], 0));
    assert!(close(two.step_seconds(64.0).value, 0.26, 1e-9));
    assert_eq!(two.step_seconds(64.0).range, None);
    assert!(two.parameters.iter().all(|(_, it)| it.range.is_none()));
    let remarks = two.remarks().concat();
    assert!(
        remarks.contains("No error can be estimated") && remarks.contains("left out: \u{3b2} 2(p-1)/p"),
        "{remarks}"
    );

    let three = fit(&[1, 2, 4]).unwrap();
    assert_eq!((three.left_out.as_slice(), three.degrees_of_freedom), (&[Term::Ring][..], 1));
    assert!(three.step_seconds(64.0).range.is_some());
    assert!(!three.remarks().concat().contains("No error"));
    let four = fit(&[1, 2, 4, 8]).unwrap();
    assert!(four.left_out.is_empty() && four.degrees_of_freedom == 1);
}

#[test]
fn a_model_that_does_not_fit_gives_no_error() {
    let wild = Fit::new(Mode::Weak, &[(1, 1.0), (2, 3.0), (4, 0.5), (8, 2.0)]).unwrap();
    assert!(wild.misses_by > 0.3);
    assert_eq!(wild.step_seconds(16.0).range, None);
    assert!(wild.remarks().concat().contains("misses the measurements by too much"));
}

#[test]
fn steps_that_get_slower_are_no_serial_work_alone() {
    let fit = Fit::new(Mode::Strong, &[(1, 1.0), (2, 1.1), (4, 1.2), (8, 1.3)]).unwrap();
    assert!(close(fit.serial_fraction.unwrap().value, 1.0, 1e-9) && close(fit.coefficients[2], 0.1, 1e-9));
    assert!(close(fit.step_seconds(16.0).value, 1.4, 1e-9));
    let two = Fit::new(Mode::Strong, &[(1, 1.0), (2, 1.1)]).unwrap();
    assert_eq!(two.left_out, [Term::Shared]);
    // Weak scaling that gets faster is taken for noise: no coefficient is negative.
    let faster = Fit::new(Mode::Weak, &[(1, 1.0), (2, 0.98), (4, 0.96), (8, 0.94)]).unwrap();
    assert_eq!(faster.coefficients[1..], [0.0, 0.0]);
    assert!(faster.step_seconds(64.0).value > 0.94 && faster.step_seconds(64.0).range.unwrap()[0] > 0.0);
}

#[test]
fn times_that_are_none_have_no_fit() {
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-320] {
        assert!(Fit::new(Mode::Weak, &[(1, 0.2), (2, seconds), (4, 0.2)]).is_none(), "{seconds}");
    }
    assert!(Fit::new(Mode::Weak, &[(0, 0.2), (2, 0.2)]).is_none());
}

/// Over many sets of measurements, the share of ranges that hold the time of the true model.
fn coverage(mode: Mode, coefficients: [f64; 3], sizes: &[usize], noise: f64) -> f64 {
    let rng = &mut ChaCha8Rng::seed_from_u64(7);
    let (exact, truth) = (points(mode, coefficients, sizes), time(mode, coefficients, 64));
    let holds = |_| {
        let fit = Fit::new(mode, &noisy(&exact, noise, rng)).unwrap();
        fit.step_seconds(64.0).range.is_some_and(|[low, high]| (low..=high).contains(&truth))
    };
    let draws = 1000;
    (0..draws).map(holds).filter(|it| *it).count() as f64 / f64::from(draws)
}

#[test]
fn ranges_hold_the_truth_as_often_as_they_say() {
    let all = [
        (Mode::Weak, [0.2, 0.01, 0.0]),
        (Mode::Weak, [0.2, 0.0, 0.02]),
        (Mode::Weak, [0.2, 0.01, 0.02]),
        (Mode::Weak, [0.2, 0.0, 0.0]),
        (Mode::Strong, [0.05, 0.8, 0.01]),
        (Mode::Strong, [0.05, 0.8, 0.0]),
        (Mode::Strong, [0.0, 0.8, 0.01]),
        (Mode::Strong, [0.0, 0.8, 0.0]),
    ];
    for (mode, coefficients) in all {
        for sizes in [&[1, 2, 4][..], &[1, 2, 4, 8], &[1, 2, 3, 4, 6, 8, 12]] {
            for noise in [0.002, 0.02] {
                let held = coverage(mode, coefficients, sizes, noise);
                println!("{mode} {coefficients:?} {} sizes, noise {noise}: {held:.3}", sizes.len());
                // A thousand draws: 0.95 and more than two standard errors.
                assert!(held > 0.935, "{mode} {coefficients:?} {sizes:?} {noise}: {held}");
            }
        }
    }
}

#[test]
fn the_range_of_the_serial_fraction_holds_it_and_is_not_all_there_is() {
    let rng = &mut ChaCha8Rng::seed_from_u64(11);
    let exact = points(Mode::Strong, [0.08, 0.8, 0.01], &[1, 2, 3, 4, 6, 8, 12, 16]);
    let (mut held, mut widths) = ([0; 2], 0.0);
    for _ in 0..500 {
        let [low, high] =
            Fit::new(Mode::Strong, &noisy(&exact, 0.01, rng)).unwrap().serial_fraction.unwrap().range.unwrap();
        held[0] += usize::from(low <= 0.08 / 0.88);
        held[1] += usize::from(0.08 / 0.88 <= high);
        widths += (high - low) / 500.0;
    }
    assert!(held.iter().all(|held| (475..=499).contains(held)), "each end misses one in forty: {held:?}");
    assert!((0.01..0.1).contains(&widths), "{widths}");
}

#[test]
fn a_range_says_something_where_noise_is_low() {
    let rng = &mut ChaCha8Rng::seed_from_u64(3);
    let exact = points(Mode::Strong, [0.05, 0.8, 0.01], &[1, 2, 3, 4, 6, 8, 12, 16]);
    let [low, high] = Fit::new(Mode::Strong, &noisy(&exact, 0.01, rng)).unwrap().step_seconds(64.0).range.unwrap();
    assert!(high / low < 1.5, "{low} to {high}");
}

#[test]
fn a_range_is_neither_wider_nor_narrower_than_what_is_possible() {
    let rng = &mut ChaCha8Rng::seed_from_u64(5);
    let sizes = [1.0f64, 2.0, 4.0, 8.0];
    let terms: Vec<Vec<f64>> = vec![
        sizes.to_vec().iter().map(|_| 1.0).collect(),
        sizes.iter().map(|p| p.log2()).collect(),
        sizes.iter().map(|p| 2.0 * (p - 1.0) / p).collect(),
    ];
    let values = [0.2, 0.215, 0.221, 0.24];
    let (bound, weights) = (0.01, [1.0, 6.0, 1.97]);
    let [low, high] = LeastSquares::new(&terms, &values).range(&weights, bound).unwrap();
    let (mut least, mut most) = (f64::INFINITY, 0.0f64);
    let draws = [Uniform::new(0.0, 0.25).unwrap(), Uniform::new(0.0, 0.06).unwrap(), Uniform::new(0.0, 0.12).unwrap()];
    for _ in 0..1_000_000 {
        let tried =
            [0, 1, 2].map(|at: usize| if at > 0 && draws[0].sample(rng) < 0.08 { 0.0 } else { draws[at].sample(rng) });
        let miss = |at: usize| (0..3).map(|term| tried[term] * terms[term][at]).sum::<f64>() / values[at] - 1.0;
        if (0..4).map(|at| miss(at).powi(2)).sum::<f64>() <= bound {
            let value: f64 = (0..3).map(|term| tried[term] * weights[term]).sum();
            (least, most) = (least.min(value), most.max(value));
        }
    }
    assert!(low <= least && most <= high, "{least} to {most} is possible, beyond {low} to {high}");
    assert!(close(least, low, 0.02) && close(most, high, 0.02), "{least} to {most}, but {low} to {high}");
}
