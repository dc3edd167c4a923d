//! Curves: what is drawn is what was measured.

use kiln::report::axis::Axis;
use kiln::report::chart::{Across, Chart, Scale, Shape};
use kiln::report::palette::{self, Ink};
use kiln::report::series::{MOST, Series, moving_average, thin};
use kiln::report::{Run, curves, svg};

use super::{FIXTURE, page};

fn noise(count: usize) -> Vec<[f64; 2]> {
    (0..count).map(|at| [at as f64, ((at * 7919) % 1009) as f64]).collect()
}

#[test]
fn few_points_are_all_drawn() {
    assert_eq!(thin(&noise(MOST)), noise(MOST));
}

#[test]
fn thinning_keeps_extremes_and_their_order() {
    for count in [MOST + 1, 4_321, 100_000] {
        let mut points = noise(count);
        (points[count / 3][1], points[count / 2][1], points[count - 1][1]) = (1e6, -1e6, 5e5);
        let thinned = thin(&points);
        assert!(thinned.len() <= MOST, "{} points of {count}", thinned.len());
        for at in [count / 3, count / 2, count - 1] {
            assert!(thinned.contains(&points[at]), "point {at} of {count} is gone");
        }
        assert!(thinned.windows(2).all(|two| two[0][0] < two[1][0]));
        assert!(thinned.iter().all(|point| points.contains(point)));
    }
}

#[test]
fn thinning_keeps_gaps() {
    let mut points = noise(5_000);
    points[2_500][1] = f64::NAN;
    assert_eq!(thin(&points).iter().filter(|[_, y]| y.is_nan()).count(), 1);
}

#[test]
fn the_weight_of_a_point_halves_every_half_life() {
    let points: Vec<[f64; 2]> = (0..10_000).map(|at| [at as f64, if at < 9_000 { 1.0 } else { 0.0 }]).collect();
    let average = moving_average(&points, 100);
    assert!((average[8_999][1] - 1.0).abs() < 1e-9, "a mean of equal values is that value from the first point on");
    assert!((average[0][1] - 1.0).abs() < 1e-9);
    assert!((average[9_099][1] - 0.5).abs() < 1e-6);
    assert!((average[9_199][1] - 0.25).abs() < 1e-6);
}

#[test]
fn a_gap_stays_a_gap_and_does_not_count() {
    let average = moving_average(&[[0.0, 2.0], [1.0, f64::NAN], [2.0, 2.0]], 1);
    assert!(average[1][1].is_nan());
    assert_eq!(average[2][1], 2.0);
}

#[test]
fn ticks_are_round_grow_and_cover_the_values() {
    let largest = f64::from(f32::MAX);
    for (min, max) in
        [(0.0, 1.0), (0.13, 0.87), (-3.0, 17.0), (5.0, 5.0), (0.0, 0.0), (1e-9, 3e-9), (-largest, largest)]
    {
        let axis = Axis::linear(min, max);
        assert!((2..=12).contains(&axis.ticks.len()), "{min} to {max}: {:?}", axis.ticks);
        assert!(axis.ticks.windows(2).all(|two| two[0] < two[1]), "{min} to {max}: {:?}", axis.ticks);
        let (first, last) = (axis.ticks[0], axis.ticks[axis.ticks.len() - 1]);
        assert!(first <= min + 1e-9 * min.abs() && last >= max - 1e-9 * max.abs(), "{min} to {max}: {:?}", axis.ticks);
        let labels: Vec<String> = axis.ticks.iter().map(|tick| axis.label(*tick)).collect();
        assert!(labels.windows(2).all(|two| two[0] != two[1]), "{min} to {max}: {labels:?}");
        assert!(labels.iter().all(|label| label.len() <= 8), "{min} to {max}: {labels:?}");
    }
    let labels = |axis: Axis| axis.ticks.iter().map(|tick| axis.label(*tick)).collect::<Vec<_>>();
    assert_eq!(labels(Axis::linear(0.0, 0.1)), ["0.00", "0.02", "0.04", "0.06", "0.08", "0.10"]);
    assert_eq!(labels(Axis::linear(0.0, 25_000.0)), ["0", "5k", "10k", "15k", "20k", "25k"]);
    assert_eq!(labels(Axis::logarithmic(0.012, 2.3)), ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]);
    assert_eq!(labels(Axis::linear(1_000_000.0, 1_000_900.0))[..2], ["1.0000M", "1.0002M"]);
    assert!(labels(Axis::logarithmic(1e-37, 1e38)).len() <= 12);
}

#[test]
fn a_wide_range_above_zero_gets_a_logarithmic_scale() {
    let remarks = |values: [f64; 2]| {
        let series = vec![Series::new("", 0, vec![[0.0, values[0]], [1.0, values[1]]])];
        let (title, scale, across) = ("Loss".into(), Scale::MaybeLogarithmic, Across::Linear("epoch"));
        Chart { title, series, scale, across, marks: Vec::new() }.remarks().concat()
    };
    assert!(remarks([0.1, 2.3]).contains("Logarithmic"));
    assert!(!remarks([0.5, 2.3]).contains("Logarithmic"));
    assert!(!remarks([0.0, 2.3]).contains("Logarithmic"));
}

#[test]
fn a_loss_that_is_not_finite_interrupts_its_curve_and_is_told() {
    let run = Run::read(&FIXTURE).unwrap();
    assert!(run.steps[6].loss.is_nan());
    let charts = curves::charts(&[run]);
    let loss = charts.iter().find(|chart| chart.title == "Loss").unwrap();
    let is_faint = |shape: &&Shape| matches!(shape, Shape::Line(_, Ink::Faint(_)));
    assert_eq!(loss.figure().shapes.iter().filter(is_faint).count(), 2);
    assert!(loss.remarks().contains(&"A value that is not finite is not drawn.".to_string()));
}

#[test]
fn a_change_of_membership_is_a_line_across_where_it_happened() {
    let run = Run::read(&FIXTURE).unwrap();
    let charts = curves::charts(&[run]);
    let marks: Vec<usize> = charts.iter().map(|chart| chart.marks.len()).collect();
    assert_eq!(marks, [0, 1, 0, 0, 1], "loss and throughput; the first generation is no change");
    assert_eq!(charts[1].marks, [2.45], "after step 49 of 20 per epoch");
}

#[test]
fn curves_differ_in_colour_or_dashes() {
    let looks: Vec<_> = (0..32).map(|at| (Ink::Series(at).colour(), Ink::Series(at).dashes())).collect();
    assert!((0..32).all(|at| !looks[..at].contains(&looks[at])));
    assert!(looks.windows(2).all(|two| two[0].0 != two[1].0 && two[0].1 != two[1].1), "neighbours differ in both");
}

/// The relative luminance of `rrggbb` (WCAG 2.2).
fn luminance(colour: &str) -> f64 {
    let part = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
    let linear = |part: f64| if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) };
    0.2126 * linear(part(0)) + 0.7152 * linear(part(2)) + 0.0722 * linear(part(4))
}

#[test]
fn curves_stand_out_from_light_and_dark_paper() {
    let (css, style) = (palette::css(), include_str!("../../src/report/style.css"));
    let (light, dark) = css.split_once("dark").unwrap();
    let papers: Vec<&str> = style.split("--paper: #").skip(1).map(|it| &it[..6]).collect();
    for (colours, paper) in [(light, papers[0]), (dark, papers[1])] {
        let colours: Vec<&str> = colours.split(":#").skip(1).map(|it| &it[..6]).collect();
        assert_eq!(colours.len(), 8);
        for colour in colours {
            let (a, b) = (luminance(colour), luminance(paper));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= 3.0, "{colour} on {paper} has a contrast of {contrast:.1}");
        }
    }
}

#[test]
fn the_picture_shows_the_figure() {
    let run = Run::read(&FIXTURE).unwrap();
    let figure = curves::main(&[run]);
    for ink in [Ink::Series(0), Ink::Series(1), Ink::Series(2), Ink::Grid] {
        assert!(svg::file(&figure).contains(&format!("#{:06x}", ink.colour())));
    }
}

#[test]
fn a_run_without_a_step_has_a_picture_that_says_so() {
    let figure = curves::main(&[Run::default()]);
    assert!(svg::file(&figure).contains("no step is recorded yet"));
}

#[test]
fn the_words_of_a_chart_give_its_first_and_last_values() {
    let page = page(std::slice::from_ref(&*FIXTURE));
    assert!(page.contains("aria-label=\"Learning rate, by epoch: "), "a chart has a name for those who cannot see it");
    let chart = Chart {
        title: "Loss".into(),
        series: vec![Series::new("train", 0, vec![[0.0, 2.25], [1.0, 0.5], [2.0, f64::INFINITY]])],
        scale: Scale::Linear,
        across: Across::Linear("epoch"),
        marks: Vec::new(),
    };
    assert_eq!(chart.words(), "Loss, by epoch: train from 2.25 to 0.5");
}
