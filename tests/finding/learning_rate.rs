//! The range test on curves whose steepest point and minimum are known, and on those that prove nothing.

use kiln::study::finding::{Probe, RangeTest, Suggestion};
use kiln_system::Error;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Normal};
use serde_json::Value;

use super::{probes, typical};

fn suggestion(probes: &[Probe]) -> Suggestion {
    RangeTest::new(probes, 1.0).unwrap().verdict.unwrap()
}

fn none(probes: &[Probe]) -> String {
    RangeTest::new(probes, 1.0).unwrap().verdict.unwrap_err()
}

/// Both rates differ by less than this many decades.
fn assert_near(found: f64, known: f64, decades: f64) {
    assert!((found / known).log10().abs() < decades, "{found} is not within {decades} decades of {known}");
}

/// Where [`typical`] is smallest, by its own values.
fn minimum() -> f64 {
    let exponents = (-5000..2000).map(|it| f64::from(it) / 1000.0);
    10f64.powf(exponents.min_by(|a, b| typical(*a).total_cmp(&typical(*b))).unwrap())
}

fn noise(deviation: f64, seed: u64) -> impl FnMut() -> f64 {
    let (normal, mut random) = (Normal::new(0.0, deviation).unwrap(), ChaCha8Rng::seed_from_u64(seed));
    move || normal.sample(&mut random)
}

#[test]
fn the_steepest_point_and_the_minimum_are_those_of_the_curve() {
    for steps in [100, 200, 1000] {
        let it = suggestion(&probes(steps, 1e-5, 1e2, typical));
        assert_near(it.steepest, 0.01, 0.2);
        // The steepest slope of the curve is 1.5 / (4 * 0.25); the average and the window make it less so.
        assert!((-1.55..-1.0).contains(&it.slope), "{}", it.slope);
        assert_near(it.minimum, minimum(), 0.15);
        assert_eq!(it.tenth, it.minimum / 10.0);
    }
}

#[test]
fn a_straight_fall_has_its_own_slope() {
    // 0.7 per decade down to the rate 1, then up.
    let line = |x: f64| if x < 0.0 { 3.0 - 0.7 * (x + 4.0) } else { 0.2 + 2.0 * x };
    let it = suggestion(&probes(120, 1e-4, 1e2, line));
    assert!((it.slope + 0.7).abs() < 1e-9, "{}", it.slope);
    assert_near(it.minimum, 1.0, 0.25);
}

#[test]
fn the_direction_of_the_steepest_point_follows_the_curve() {
    for at in [-4.0, -3.0, -2.0, -1.0] {
        let curve = |x: f64| typical(x - at - 2.0);
        assert_near(suggestion(&probes(160, 1e-7, 1e3, curve)).steepest, 10f64.powf(at), 0.25);
    }
}

#[test]
fn noise_moves_the_suggestion_by_less_than_its_range() {
    for seed in 0..50 {
        let mut noise = noise(0.1, seed);
        let it = suggestion(&probes(100, 1e-5, 1e2, |x| typical(x) + noise()));
        assert_near(it.tenth, minimum() / 10.0, 3f64.log10());
        assert_near(it.steepest, 0.01, 0.5);
    }
}

#[test]
fn a_run_that_diverges_is_cut_off_there() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
        let mut probes = probes(100, 1e-5, 1e2, typical);
        probes[75..].iter_mut().for_each(|it| it.loss = bad);
        let test = RangeTest::new(&probes, 1.0).unwrap();
        assert_eq!((test.cut_off, test.averaged.len()), (Some(probes[75].rate), 75), "{bad}");
        let before = RangeTest::new(&self::probes(100, 1e-5, 1e2, typical), 1.0).unwrap();
        assert_eq!(test.averaged, before.averaged[..75], "what came after is not in the average");
        let (cut, whole) = (test.verdict.unwrap(), before.verdict.unwrap());
        assert_eq!((cut.steepest, cut.minimum), (whole.steepest, whole.minimum));
    }
}

#[test]
fn a_loss_above_four_times_its_minimum_ends_the_test() {
    let test = RangeTest::new(&probes(100, 1e-5, 1e2, typical), 1.0).unwrap();
    let losses: Vec<f64> = test.averaged.iter().map(|it| it.loss).collect();
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(losses.iter().all(|loss| *loss <= 4.0 * least));
    assert_eq!(test.cut_off, Some(test.probes[losses.len()].rate));
    assert!(losses.len() < 95, "{} of 100 steps are left", losses.len());
}

#[test]
fn a_run_that_dies_while_it_falls_has_its_minimum_there() {
    let line = |x: f64| if x < 0.0 { 3.0 - 0.5 * (x + 4.0) } else { f64::NAN };
    assert_near(suggestion(&probes(100, 1e-4, 1e2, line)).minimum, 1.0, 0.4);
}

#[test]
fn the_average_is_the_one_that_fastai_takes_with_another_decay() {
    let probes = probes(50, 1e-3, 1e1, typical);
    let test = RangeTest::new(&probes, 1.0).unwrap();
    // A half-life of 50 / 25 steps, and the correction for the start as fastai and Adam write it.
    let beta = 0.5f64.sqrt();
    let (mut loss, mut log_rate) = (0.0, 0.0);
    for (step, (probe, averaged)) in probes.iter().zip(&test.averaged).enumerate() {
        loss = beta * loss + (1.0 - beta) * probe.loss;
        log_rate = beta * log_rate + (1.0 - beta) * probe.rate.ln();
        let correction = 1.0 - beta.powi(step as i32 + 1);
        assert!((averaged.loss - loss / correction).abs() < 1e-12);
        assert!((averaged.rate.ln() - log_rate / correction).abs() < 1e-12);
    }
}

#[test]
fn the_flag_is_the_rate_before_the_scaling_of_the_schedule() {
    let probes = probes(100, 1e-5, 1e2, typical);
    let alone = RangeTest::new(&probes, 1.0).unwrap();
    let scaled = RangeTest::new(&probes, 8.0).unwrap();
    let (one, eight) = (alone.verdict.clone().unwrap(), scaled.verdict.clone().unwrap());
    assert_eq!((one.tenth, one.steepest), (eight.tenth, eight.steepest));
    assert!((eight.learning_rate * 8.0 / eight.tenth - 1.0).abs() < 0.06, "two digits");
    assert_eq!(eight.effective, 8.0 * eight.learning_rate);
    assert_eq!(eight.range, [eight.effective / 3.0, eight.effective * 3.0]);
    let text = scaled.to_string();
    assert!(text.contains(&format!("use         --learning-rate {} (times 8 by", eight.learning_rate)), "{text}");
    assert!(!alone.to_string().contains("times"), "{alone}");
    assert_eq!(text.lines().count(), 5, "{text}");
}

#[test]
fn a_flat_curve_suggests_nothing() {
    let flat = probes(100, 1e-6, 1e-2, |_| 2.3);
    let text = RangeTest::new(&flat, 1.0).unwrap().to_string();
    let none = "no suggestion: the loss never fell; try a wider range with --to 0.1, or more steps with --steps 200";
    assert!(text.ends_with(none), "{text}");
    assert!(!text.contains("--learning-rate"), "{text}");
}

#[test]
fn noise_alone_suggests_nothing() {
    for deviation in [0.05, 0.3] {
        let is_none = |seed: &u64| {
            let mut noise = noise(deviation, *seed);
            RangeTest::new(&probes(100, 1e-6, 1e1, |_| 2.3 + noise()), 1.0).unwrap().verdict.is_err()
        };
        let honest = (0..200).filter(is_none).count();
        assert!(honest >= 199, "{honest} of 200 with noise {deviation}");
    }
}

#[test]
fn a_curve_that_only_rises_asks_for_a_lower_begin() {
    let rose = "the loss did not fall by more than noise before it rose; try more steps with --steps 200, or start lower with --from 0.001";
    assert_eq!(none(&probes(100, 1e-1, 1e1, |x| 3.0 + x)), rose);
    let runaway = probes(100, 1e-1, 1e3, |x| 2.0 + 10f64.powf(2.0 * x));
    assert_eq!(none(&runaway), rose);
}

#[test]
fn a_curve_that_runs_away_at_once_asks_for_a_lower_begin() {
    let mut probes = probes(100, 1e-1, 1e1, |_| f64::NAN);
    assert_eq!(none(&probes), "the loss diverged after 0 steps; start lower, with --from 0.001");
    probes[..10].iter_mut().for_each(|it| it.loss = 2.0);
    assert_eq!(none(&probes), "the loss diverged after 10 steps; start lower, with --from 0.001");
}

#[test]
fn a_curve_that_still_falls_asks_for_a_higher_end() {
    let falling = |x: f64| 2.3 - 0.3 * (x + 5.0);
    let still = "the loss was still falling at the highest rate; try --to 1";
    assert_eq!(none(&probes(100, 1e-5, 1e-1, falling)), still);
    let level = |x: f64| 2.3 - 1.5 / (1.0 + (-(x + 3.0) / 0.2).exp());
    assert_eq!(none(&probes(100, 1e-5, 1e-1, level)), still, "nor does a level one do");
}

#[test]
fn too_few_steps_suggest_nothing() {
    assert!(none(&[]).starts_with("0 steps are too few"));
    assert!(none(&probes(19, 1e-5, 1e2, typical)).starts_with("19 steps are too few"));
    let it = suggestion(&probes(20, 1e-5, 1e2, typical));
    assert_near(it.minimum, minimum(), 0.5);
}

#[test]
fn a_real_network_trains_well_at_the_suggested_rates() {
    // `range.py` tested a small residual network in PyTorch, and trained it at seven rates.
    let file = std::fs::read("tests/fixtures/finding/range.json").unwrap();
    let tests: Vec<Value> = serde_json::from_slice(&file).unwrap();
    let mut suggestions = Vec::new();
    for test in &tests {
        let pairs = |name: &str| -> Vec<(f64, f64)> {
            let pair = |it: &Value| (it[0].as_f64().unwrap(), it[1].as_f64().unwrap_or(f64::NAN));
            test[name].as_array().unwrap().iter().map(pair).collect()
        };
        let probes: Vec<Probe> = pairs("probes").into_iter().map(|(rate, loss)| Probe { rate, loss }).collect();
        let Ok(it) = RangeTest::new(&probes, 1.0).unwrap().verdict else { continue };
        let trained = pairs("trained");
        let least = trained.iter().map(|it| it.1).fold(f64::INFINITY, f64::min);
        let good: Vec<f64> = trained.iter().filter(|it| it.1 < 1.1 * least).map(|it| it.0).collect();
        let [low, high] = it.range;
        assert!(good.len() == 2 && good.iter().any(|it| (low..=high).contains(it)), "{good:?} and not {low} to {high}");
        suggestions.push(it);
    }
    assert_eq!((tests.len(), suggestions.len()), (16, 15), "one falls by no more than its noise");
    let spread = |of: fn(&Suggestion) -> f64| {
        let values = || suggestions.iter().map(of);
        values().fold(0.0, f64::max) / values().fold(f64::INFINITY, f64::min)
    };
    assert!(spread(|it| it.tenth) < 20.0 && spread(|it| it.steepest) > 1000.0, "why the tenth is recommended");
}

#[test]
fn rates_that_do_not_grow_are_refused() {
    let probe = |rate: f64| Probe { rate, loss: 1.0 };
    for rates in [[1.0, 1.0], [2.0, 1.0]] {
        let error = RangeTest::new(&rates.map(probe), 1.0).unwrap_err();
        assert!(matches!(error, Error::Data(_)) && error.to_string().contains("in step 2"), "{error}");
    }
}

proptest! {
    #[test]
    fn any_losses_give_a_finite_suggestion_or_none(
        losses in prop::collection::vec(prop_oneof![0.0..10f64, -1e3..1e3f64, Just(f64::NAN), Just(1e38), Just(0.0)], 0..150),
        growth in 0.1..100f64,
    ) {
        let probe = |(step, loss): (usize, &f64)| Probe { rate: 1e-6 * 1.1f64.powi(step as i32), loss: *loss };
        let probes: Vec<Probe> = losses.iter().enumerate().map(probe).collect();
        let test = RangeTest::new(&probes, growth).unwrap();
        prop_assert!(!test.to_string().contains("NaN"));
        if let Ok(it) = test.verdict {
            let inside = probes[0].rate..=probes[probes.len() - 1].rate * (1.0 + 1e-9);
            prop_assert!(inside.contains(&it.steepest) && inside.contains(&it.minimum));
            prop_assert!(it.learning_rate > 0.0 && it.slope.is_finite());
        }
    }
}
