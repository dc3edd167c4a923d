//! The search for the largest batch, on machines that fit up to a known size or have a known memory.

use kiln::study::finding::search::unit;
use kiln::study::finding::{Analysis, Bounds, Trial, next};
use proptest::prelude::*;

use super::{fits, too_large};

/// Asks for sizes until there are none, on a machine whose outcome `run` says.
fn search(bounds: &Bounds, run: impl Fn(usize) -> Trial) -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    while let Some(size) = next(&trials, bounds) {
        assert!(trials.len() < bounds.trials && (1..=bounds.largest).contains(&size));
        assert!(trials.iter().all(|it| it.batch_size != size), "{size} is tried twice");
        trials.push(run(size));
    }
    trials
}

fn up_to(limit: usize) -> impl Fn(usize) -> Trial {
    move |size| if size <= limit { fits(size, 1.0, 0) } else { too_large(size, "") }
}

fn sizes(trials: &[Trial]) -> Vec<usize> {
    trials.iter().map(|it| it.batch_size).collect()
}

fn largest(trials: &[Trial]) -> usize {
    trials.iter().filter(|it| it.fits()).map(|it| it.batch_size).max().unwrap_or(0)
}

#[test]
fn sizes_double_until_one_fails_then_halve_the_distance() {
    assert_eq!(sizes(&search(&Bounds::default(), up_to(100))), [8, 16, 32, 64, 128, 96, 112, 104]);
    assert_eq!(sizes(&search(&Bounds::default(), up_to(300))), [8, 16, 32, 64, 128, 256, 512, 384, 320, 288]);
}

#[test]
fn a_first_size_that_is_too_large_is_halved() {
    assert_eq!(sizes(&search(&Bounds { start: 64, ..Bounds::default() }, up_to(20))), [64, 32, 16, 24]);
    assert_eq!(sizes(&search(&Bounds::default(), up_to(3))), [8, 4, 2, 3]);
    assert_eq!(sizes(&search(&Bounds::default(), up_to(0))), [8, 4, 2, 1]);
}

#[test]
fn the_largest_size_that_makes_sense_is_the_last() {
    assert_eq!(sizes(&search(&Bounds { largest: 50, ..Bounds::default() }, up_to(1000))), [8, 16, 32, 50]);
    assert_eq!(sizes(&search(&Bounds { largest: 3, ..Bounds::default() }, up_to(1000))), [3]);
    assert_eq!(sizes(&search(&Bounds { largest: 0, ..Bounds::default() }, up_to(1000))), [0; 0]);
}

#[test]
fn memory_is_predicted_and_nine_tenths_of_it_are_used() {
    // 100 + 10 per image in 2000: 1800 is room for 170, of which 168 is a multiple of 8 and 160 one of 16.
    let machine = |size: usize| fits(size, 1.0, 100 + 10 * size as u64);
    let bounds = Bounds { memory: Some(2000), ..Bounds::default() };
    assert_eq!(sizes(&search(&bounds, machine)), [8, 16, 32, 64, 128, 160]);
}

#[test]
fn a_size_that_fills_the_memory_is_the_last() {
    let bounds = Bounds { memory: Some(1000), ..Bounds::default() };
    assert_eq!(sizes(&search(&bounds, |size| fits(size, 1.0, 950))), [8]);
    assert_eq!(sizes(&search(&bounds, |size| fits(size, 1.0, 500))).len(), 12, "no size needs more than another");
}

#[test]
fn the_search_ends_when_two_sizes_in_a_row_are_slower() {
    let peak = |size: usize| fits(size, if size <= 32 { size as f64 } else { 32.0 - size as f64 / 1e3 }, 0);
    assert_eq!(sizes(&search(&Bounds::default(), peak)), [8, 16, 32, 64, 128]);
    let dip = |size: usize| fits(size, if size == 16 { 1.0 } else { size as f64 }, 0);
    assert_eq!(sizes(&search(&Bounds { largest: 128, ..Bounds::default() }, dip)), [8, 16, 32, 64, 128]);
    let found = Analysis::new(search(&Bounds::default(), peak), None).unwrap();
    assert_eq!(found.suggestion, Some(32));
    let text = found.to_string();
    assert!(text.contains("128 images per replica fit; larger ones were not tried\n"), "{text}");
    assert!(text.contains("the two largest were slower than a smaller one"), "{text}");
}

#[test]
fn a_size_that_failed_below_one_that_fits_counts_for_nothing() {
    let trials = [too_large(32, ""), fits(64, 1.0, 0)];
    assert_eq!(next(&trials, &Bounds::default()), Some(128));
    assert_eq!(next(&[&trials[..], &[too_large(128, "")]].concat(), &Bounds::default()), Some(96));
}

#[test]
fn trials_are_counted() {
    assert_eq!(search(&Bounds { trials: 3, ..Bounds::default() }, up_to(1 << 40)).len(), 3);
    assert_eq!(search(&Bounds { trials: 0, ..Bounds::default() }, up_to(1 << 40)).len(), 0);
    let endless = Bounds { trials: usize::MAX, ..Bounds::default() };
    assert!(search(&endless, up_to(usize::MAX)).len() < 100, "sizes end before numbers do");
}

proptest! {
    #[test]
    fn the_largest_size_is_found_within_its_unit(limit in 1..1100usize, start in prop::sample::select(vec![1usize, 8, 16, 64])) {
        let trials = search(&Bounds { start, trials: 14, ..Bounds::default() }, up_to(limit));
        let found = largest(&trials);
        prop_assert!(found <= limit && limit < found + unit(found), "{found} of {limit}: {:?}", sizes(&trials));
    }

    #[test]
    fn any_start_finds_the_largest_size_within_two_units(limit in 1..5000usize, start in 1..3000usize) {
        let trials = search(&Bounds { start, trials: 40, ..Bounds::default() }, up_to(limit));
        let found = largest(&trials);
        prop_assert!(found <= limit && limit < found + 2 * unit(found), "{found} of {limit}: {:?}", sizes(&trials));
    }

    #[test]
    fn no_size_is_tried_that_memory_predicts_not_to_fit(
        fixed in 0..20_000u64, per_image in 1..500u64, memory in 1_000..400_000u64, hidden in 1..5000usize,
    ) {
        let bytes = |size: usize| fixed + per_image * size as u64;
        let machine = |size: usize| if size <= hidden && bytes(size) <= memory { fits(size, 1.0, bytes(size)) } else { too_large(size, "") };
        let trials = search(&Bounds { memory: Some(memory), ..Bounds::default() }, machine);
        let room = |size: usize| 10 * bytes(size) <= 9 * memory;
        for (at, trial) in trials.iter().enumerate() {
            let known = trials[..at].iter().filter(|it| it.fits()).count();
            prop_assert!(known < 2 || room(trial.batch_size), "{} does not fit: {:?}", trial.batch_size, sizes(&trials));
        }
        // The exact boundary is left to rounding.
        let found = largest(&trials);
        let best = (1..=hidden).rev().find(|size| room(*size)).unwrap_or(0);
        let is_certain = trials.len() < 12 && trials.iter().filter(|it| it.fits()).count() > 1;
        prop_assert!(!is_certain || best <= found + 2 * unit(found), "{found} of {best}: {:?}", sizes(&trials));
    }

    #[test]
    fn any_trials_get_an_answer(
        trials in prop::collection::vec((0..70usize, any::<bool>(), any::<u64>()), 0..15),
        huge in any::<bool>(), memory in prop::option::of(any::<u64>()), start in any::<usize>(), largest in any::<usize>(),
    ) {
        let scale = if huge { usize::MAX / 70 } else { 1 };
        let trial = |(size, ok, bytes): (usize, bool, u64)| if ok { fits(size * scale, f64::NAN, bytes) } else { too_large(size * scale, "") };
        let trials: Vec<Trial> = trials.into_iter().map(trial).collect();
        let size = next(&trials, &Bounds { start, largest, memory, trials: 14 });
        prop_assert!(size.is_none_or(|size| size > 0 && size <= largest && trials.iter().all(|it| it.batch_size != size)));
    }
}
