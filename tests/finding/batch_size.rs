//! What trials say: the largest size, the best throughput, memory, and which size to use.

use kiln::study::finding::{Analysis, MemoryLine};
use kiln_system::Error;

use super::{analysed, fits, too_large};

#[test]
fn the_smallest_size_with_nearly_the_best_throughput_is_suggested() {
    let it = analysed();
    assert_eq!((it.largest, it.too_large, it.best), (Some(128), Some(256), Some((128, 980.0))));
    // 95 % of 980 is 931, just above the 930.5 of 32 images.
    assert_eq!(it.suggestion, Some(64));
    assert_eq!(it.share(64), Some(975.25 / 980.0));
    let text = it.to_string();
    assert!(text.contains("use         --batch-size 64\n"), "{text}");
    assert!(text.contains("largest     128 images per replica fit, 256 do not\n"), "{text}");
    assert!(text.contains("     256  too large            -         -\n"), "{text}");
}

#[test]
fn exactly_95_percent_is_enough_and_the_best_need_not_be_the_largest() {
    let it = Analysis::new(vec![fits(64, 900.0, 0), fits(32, 1000.0, 0), fits(16, 950.0, 0), fits(8, 949.9, 0)], None);
    let it = it.unwrap();
    assert_eq!((it.suggestion, it.best, it.largest), (Some(16), Some((32, 1000.0)), Some(64)));
    assert_eq!((it.memory, it.too_large), (None, None));
    assert!(!it.to_string().contains("may be even faster"));
}

#[test]
fn a_throughput_that_still_grows_is_told() {
    let it = Analysis::new(vec![fits(8, 100.0, 10), fits(16, 200.0, 20)], None).unwrap();
    assert!(it.to_string().contains("a larger one may be even faster"), "{it}");
    let full = Analysis::new(vec![fits(8, 100.0, 10), fits(16, 200.0, 20)], Some(23)).unwrap();
    assert!(full.to_string().contains("more than 90 % of the memory"), "{full}");
    assert!(!full.to_string().contains("even faster"), "{full}");
}

#[test]
fn memory_is_a_line_through_the_trials() {
    let exact = [(8, 180), (16, 260), (64, 740)];
    let line = MemoryLine::through(&exact).unwrap();
    assert!((line.fixed - 100.0).abs() < 1e-9 && (line.per_image - 10.0).abs() < 1e-9, "{line:?}");
    assert_eq!((line.largest(1105.0), line.largest(99.0), line.largest(f64::INFINITY)), (100, 0, usize::MAX));
    // numpy.polyfit([1, 2, 3, 4], [6, 5, 7, 10], 1) is [1.4, 3.5].
    let line = MemoryLine::through(&[(1, 6), (2, 5), (3, 7), (4, 10)]).unwrap();
    assert!((line.per_image - 1.4).abs() < 1e-9 && (line.fixed - 3.5).abs() < 1e-9, "{line:?}");
    assert_eq!(MemoryLine::through(&[(8, 500)]), Some(MemoryLine { fixed: 500.0, per_image: 0.0 }));
    assert_eq!(MemoryLine::through(&[]), None);
}

#[test]
fn memory_that_is_not_known_is_left_out() {
    let it = Analysis::new(vec![fits(8, 100.0, 0), fits(16, 200.0, 300), fits(32, 300.0, 500)], None).unwrap();
    let line = it.memory.unwrap();
    assert!((line.fixed - 100.0).abs() < 1e-9 && (line.per_image - 12.5).abs() < 1e-9, "{line:?}");
}

#[test]
fn nothing_that_fits_is_no_suggestion() {
    let it = Analysis::new(vec![too_large(8, "a"), too_large(1, "b")], None).unwrap();
    assert_eq!((it.suggestion, it.largest, it.best), (None, None, None));
    assert!(it.to_string().contains("no suggestion: a batch of 1 does not fit into memory"), "{it}");
    let it = Analysis::new(vec![too_large(8, "a")], None).unwrap();
    assert!(it.to_string().contains("a batch of 8 does not fit into memory; try fewer"), "{it}");
}

#[test]
fn a_size_that_failed_below_one_that_fits_is_no_bound() {
    let it = Analysis::new(vec![too_large(8, "a"), fits(16, 1.0, 0)], None).unwrap();
    assert_eq!((it.largest, it.too_large), (Some(16), None));
    let it = Analysis::new(vec![too_large(8, "a"), fits(16, 1.0, 0), too_large(32, "b")], None).unwrap();
    assert_eq!(it.too_large, Some(32));
}

#[test]
fn a_trial_without_a_throughput_is_refused() {
    for (rate, words) in [(f64::NAN, "'NaN' images per second"), (0.0, "'0' images per second")] {
        let error = Analysis::new(vec![fits(8, rate, 0)], None).unwrap_err();
        assert!(matches!(error, Error::Data(_)) && error.to_string().contains(words), "{error}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
}
