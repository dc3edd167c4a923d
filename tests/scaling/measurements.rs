//! Measurements: what follows from them, how they are compared, and which are refused.

use std::collections::BTreeMap;

use kiln::report::series::Look;
use kiln::study::scaling::curve::Layout;
use kiln::study::scaling::{Analysis, Measurement, Mode};

use super::{analysed, measured, varied};

#[test]
fn medians_and_quartiles_are_those_of_numpy() {
    let it = |times: &[f64]| Measurement {
        steps: times.len(),
        step_seconds: times.to_vec(),
        ..measured(Mode::Weak, 2, 1, 1.0)
    };
    // numpy.quantile([...], [0.25, 0.5, 0.75])
    let four = it(&[0.4, 0.1, 0.3, 0.25]);
    assert_eq!(four.quartiles().map(|it| (1e6 * it).round()), [212_500.0, 325_000.0]);
    assert!((four.median() - 0.275).abs() < 1e-12);
    assert!((four.images_per_second() - 64.0 / 0.275).abs() < 1e-9);
    let one = it(&[0.2]);
    assert_eq!((one.median(), one.quartiles()), (0.2, [0.2, 0.2]));
    assert_eq!(it(&[0.2, 0.2, 9.0]).median(), 0.2, "a step that was interrupted changes nothing");
}

#[test]
fn speed_up_and_efficiency_are_against_the_smallest_of_the_mode() {
    let all = [
        measured(Mode::Strong, 8, 1, 0.25),
        measured(Mode::Strong, 2, 1, 0.8),
        measured(Mode::Weak, 4, 2, 0.25),
        measured(Mode::Weak, 1, 1, 0.2),
    ];
    let rows = analysed(&all).rows;
    let found: Vec<_> = rows.iter().map(|row| (row.mode, row.replicas, row.speed_up, row.efficiency)).collect();
    let expected = [
        (Mode::Weak, 1, 1.0, 1.0),
        (Mode::Weak, 4, 3.2, 0.8),
        (Mode::Strong, 2, 1.0, 1.0),
        (Mode::Strong, 8, 3.2, 0.8),
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((found.0, found.1), (expected.0, expected.1));
        assert!((found.2 - expected.2).abs() < 1e-12 && (found.3 - expected.3).abs() < 1e-12, "{found:?}");
    }
    assert!((rows[1].exposed_share - 0.04).abs() < 1e-12);
}

#[test]
fn a_prediction_is_the_model_times_the_images() {
    let weak = |p: f64| 0.2 + 0.01 * p.log2();
    let strong = |p: f64| 0.1 + 0.8 / p;
    let all: Vec<Measurement> = [1, 2, 4, 8]
        .into_iter()
        .flat_map(|p| [measured(Mode::Weak, p, 1, weak(p as f64)), measured(Mode::Strong, p, 1, strong(p as f64))])
        .collect();
    let analysis = analysed(&all).predict(&[32, 512, 8, 0]);
    for (curve, time, sizes) in [
        (&analysis.curves[0], &weak as &dyn Fn(f64) -> f64, &[16, 32, 64, 512][..]),
        (&analysis.curves[1], &strong, &[16, 32, 64]),
    ] {
        let found: Vec<usize> = curve.predictions.iter().map(|it| it.replicas).collect();
        assert_eq!(found, sizes, "8 is measured, and 512 replicas have no image each of 256");
        for it in &curve.predictions {
            let p = it.replicas as f64;
            let images = if curve.mode == Mode::Weak { 32.0 * p } else { 256.0 };
            let base = if curve.mode == Mode::Weak { 32.0 / time(1.0) } else { 256.0 / time(1.0) };
            let rate = images / time(p);
            assert!((it.step_seconds.value / time(p) - 1.0).abs() < 1e-9);
            assert!((it.images_per_second.value / rate - 1.0).abs() < 1e-9);
            assert!((it.efficiency.value - rate / base / p).abs() < 1e-9);
            for it in [it.step_seconds, it.images_per_second, it.efficiency] {
                let [low, high] = it.range.unwrap();
                assert!(low <= it.value * (1.0 + 1e-9) && it.value <= high * (1.0 + 1e-9), "{it:?}");
            }
        }
    }
}

#[test]
fn the_longest_step_is_the_lowest_rate_and_efficiency() {
    let all: Vec<Measurement> = [(1, 0.2), (2, 0.212), (4, 0.219), (8, 0.233)]
        .into_iter()
        .map(|(p, seconds)| measured(Mode::Weak, p, 1, seconds))
        .collect();
    let curves = analysed(&all).curves;
    let it = &curves[0].predictions[1];
    let [low, high] = it.step_seconds.range.unwrap();
    assert!(high > 1.05 * low);
    let near = |found: [f64; 2], expected: [f64; 2]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-9), "{found:?} {expected:?}");
    };
    near(it.images_per_second.range.unwrap(), [64.0 * 32.0 / high, 64.0 * 32.0 / low]);
    near(it.efficiency.range.unwrap(), [0.2 / high, 0.2 / low]);
}

#[test]
fn noise_predicts_no_efficiency_above_100_percent() {
    // Two replicas that were faster than one: what noise does to two short runs.
    for (mode, one, two) in [(Mode::Weak, 0.25, 0.17), (Mode::Strong, 0.8, 0.3)] {
        let analysis = analysed(&[measured(mode, 1, 1, one), measured(mode, 2, 1, two)]);
        let curve = &analysis.curves[0];
        assert!(curve.rows[1].efficiency > 1.0, "what was measured stays");
        for it in &curve.predictions {
            assert!(it.efficiency.value <= 1.0 + 1e-12, "{it:?}");
            assert!(it.efficiency.range.is_none_or(|[_, high]| high <= 1.0 + 1e-12), "{it:?}");
        }
        let (text, page) = (analysis.to_string(), kiln::study::scaling::page::page(&analysis));
        for part in ["predictions stop at an efficiency of 100 %", "without a known error"] {
            assert!(text.contains(part) && page.contains(part), "{part}: {text}");
        }
        let drawn = kiln::study::scaling::charts::charts(&analysis.curves);
        let highest = |look| {
            let lines = drawn[1].series.iter().filter(|series| series.look == look);
            lines.flat_map(|series| &series.points).map(|[_, percent]| *percent).fold(0.0, f64::max)
        };
        assert!(highest(Look::Predicted) <= 100.0 + 1e-9 && highest(Look::Marks) > 100.0);
    }
    assert!(!analysed(&varied()).to_string().contains("100 %."), "nothing is cut off that need not be");
}

#[test]
fn every_measurement_is_in_as_few_curves_as_possible() {
    let layouts = |sizes: &[(usize, usize)]| -> Vec<(Layout, Vec<usize>)> {
        let all: Vec<Measurement> = sizes.iter().map(|(p, n)| measured(Mode::Weak, *p, *n, 0.2)).collect();
        let curves = analysed(&all).curves;
        curves.iter().map(|it| (it.layout, it.rows.iter().map(|row| row.replicas).collect())).collect()
    };
    use Layout::{Each, Processes};
    assert_eq!(layouts(&[(1, 1)]), [(Processes(1), vec![1])]);
    assert_eq!(layouts(&[(1, 1), (2, 1), (4, 1)]), [(Processes(1), vec![1, 2, 4])]);
    assert_eq!(layouts(&[(1, 1), (2, 2), (4, 4)]), [(Each, vec![1, 2, 4])]);
    assert_eq!(
        layouts(&[(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)]),
        [(Processes(1), vec![1, 2, 4]), (Processes(2), vec![2, 4])]
    );
    assert_eq!(
        layouts(&[(1, 1), (2, 1), (2, 2), (4, 1), (4, 4)]),
        [(Processes(1), vec![1, 2, 4]), (Each, vec![1, 2, 4])]
    );
}

#[test]
fn shared_devices_are_told_and_left_out_of_a_model_that_can_do_without() {
    let share = |from: usize| {
        let all = [1, 2, 4, 8]
            .map(|p| Measurement { devices_shared: p >= from, ..measured(Mode::Weak, p, 1, 0.2 * p as f64) });
        analysed(&all)
    };
    let fitted = |analysis: &Analysis| analysis.curves[0].fit.as_ref().unwrap().replicas.clone();

    let none = share(16);
    assert_eq!(fitted(&none), [1, 2, 4, 8]);
    assert!(!none.to_string().contains("shared"), "{none}");
    let some = share(4);
    assert_eq!(fitted(&some), [1, 2]);
    assert!(some.to_string().contains("Replicas shared devices or processor cores at 4, 8 replicas"));
    assert!(some.to_string().contains("The models leave them out"));
    let most = share(2);
    assert_eq!(fitted(&most), [1, 2, 4, 8]);
    assert!(most.to_string().contains("its predictions are not those of more devices"));
    assert!(kiln::study::scaling::page::page(&most).contains("its predictions are not those of more devices"));
}

#[test]
fn one_size_is_shown_without_a_model() {
    let analysis = analysed(&[measured(Mode::Strong, 4, 1, 0.2)]);
    assert!(analysis.curves[0].fit.is_none() && analysis.curves[0].predictions.is_empty());
    let text = analysis.to_string();
    assert!(text.contains("With one size there is no model") && !text.contains("predicted"), "{text}");
    let page = kiln::study::scaling::page::page(&analysis);
    assert!(page.contains("With one size there is no model") && !page.contains("<h2>Models"));
}

#[test]
fn equal_times_are_no_fault() {
    let all: Vec<Measurement> = [1, 2, 4, 8]
        .into_iter()
        .flat_map(|p| [Mode::Weak, Mode::Strong].map(|mode| measured(mode, p, 1, 0.2)))
        .collect();
    let curves = analysed(&all).curves;
    let at_64 = |at: usize| curves[at].predictions.iter().find(|it| it.replicas == 64).unwrap();
    assert!((at_64(0).efficiency.value - 1.0).abs() < 1e-9, "weak scaling is perfect");
    assert!((at_64(1).efficiency.value - 1.0 / 64.0).abs() < 1e-9, "strong scaling gains nothing");
    assert!((curves[1].fit.as_ref().unwrap().serial_fraction.unwrap().value - 1.0).abs() < 1e-9);
}

#[test]
fn what_cannot_have_been_measured_is_refused_in_one_line() {
    type Change = fn(&mut Measurement);
    let times: [(Change, &str); 13] = [
        (|it| it.replicas = 0, "no replica"),
        (|it| it.processes = 0, "needs at least one process"),
        (|it| it.processes = 3, "needs at least one process, and a replica in each"),
        (|it| it.images_per_step = 0, "no image"),
        (|it| (it.steps, it.step_seconds) = (0, vec![]), "no step"),
        (|it| it.steps = 4, "a time for every step"),
        (|it| it.step_seconds[1] = 0.0, "whose time no clock can measure"),
        (|it| it.step_seconds[1] = -0.1, "whose time no clock can measure"),
        (|it| it.step_seconds[1] = f64::NAN, "whose time no clock can measure"),
        (|it| it.step_seconds[1] = f64::INFINITY, "whose time no clock can measure"),
        (|it| it.exposed_communication = f64::NAN, "waits for collectives"),
        (|it| it.exposed_communication = -0.1, "waits for collectives"),
        (|it| it.exposed_communication = 0.3, "waits for collectives longer"),
    ];
    for (change, rule) in times {
        let mut it = measured(Mode::Weak, 2, 1, 0.2);
        change(&mut it);
        let error = Analysis::new(vec![measured(Mode::Weak, 1, 1, 0.2), it], BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains(rule) && error.contains("weak scaling") && error.lines().count() == 1, "{error}");
    }
    let refused = |all: Vec<Measurement>| Analysis::new(all, BTreeMap::new()).unwrap_err().to_string();
    assert!(refused(vec![]).contains("--replicas 1,2,4"));
    let it = measured(Mode::Weak, 2, 1, 0.2);
    assert!(refused(vec![it.clone(), it.clone()]).contains("measured twice"));
    let other = Measurement { images_per_step: 65, ..measured(Mode::Weak, 1, 1, 0.2) };
    assert!(refused(vec![it, other]).contains("images per replica"));
    let strong = measured(Mode::Strong, 1, 1, 0.2);
    let other = Measurement { images_per_step: 128, ..measured(Mode::Strong, 2, 1, 0.2) };
    assert!(refused(vec![strong, other]).contains("images per step"));
}

#[test]
fn absurd_but_possible_numbers_end_in_text() {
    let (huge, tiny) = (1e9, 1e-9);
    for times in [[huge, tiny, huge], [tiny, huge, tiny], [tiny, tiny, huge], [huge, huge, huge]] {
        let sizes = [1, 3, 1 << 40];
        let all = sizes.into_iter().zip(times).flat_map(|(p, seconds)| {
            [Mode::Weak, Mode::Strong].map(|mode| Measurement {
                step_seconds: vec![seconds],
                steps: 1,
                exposed_communication: seconds,
                memory_bytes: u64::MAX,
                ..measured(mode, p, 1, 1.0)
            })
        });
        let analysis = analysed(&all.collect::<Vec<_>>()).predict(&[usize::MAX]);
        let (text, page) = (analysis.to_string(), kiln::study::scaling::page::page(&analysis));
        assert!(!text.contains("NaN") && !page.contains("NaN"), "{text}");
        assert!(!text.contains("inf") && !page.contains("inf "), "{text}");
    }
}

#[test]
fn the_terminal_shows_every_number_below_its_header() {
    let text = analysed(&varied()).to_string();
    println!("{text}");
    let table: Vec<&str> = text.lines().skip(1).take(5).collect();
    assert!(table[0].trim_start().starts_with("replicas") && table[0].ends_with("memory"));
    assert!(table.iter().all(|line| line.chars().count() == table[0].chars().count()), "columns end below each other");
    assert!(table[4].contains("1148.5") || table[4].contains("1148"), "{}", table[4]);
    assert!(text.contains("weak scaling, 1 process, 32 images per replica"));
    assert!(text.contains("weak scaling, 2 processes, 32 images per replica"));
    assert!(text.contains("strong scaling, 1 process, 256 images in all"));
    assert!(text.lines().all(|line| line.chars().count() <= 330), "notes are one line each");
}
