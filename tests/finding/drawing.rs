//! The pictures: the suggestion is marked where it is, and its name stands where nothing else does.

use kiln::report::chart::{Across, Anchor, Chart, Figure, Scale, Shape, WIDTH};
use kiln::report::palette::Ink;
use kiln::report::series::{Look, Series};
use kiln::study::finding::{Probe, RangeTest, charts};

use super::{analysed, probes, tested};

/// The texts of a figure that contain `part`: where they are, and where they begin, about.
fn texts<'a>(figure: &'a Figure, part: &'a str) -> Vec<([f64; 2], &'a String)> {
    let text = |it: &'a Shape| match it {
        Shape::Text(at, _, text, _) if text.contains(part) => Some((*at, text)),
        _ => None,
    };
    figure.shapes.iter().filter_map(text).collect()
}

/// The vertical lines in the ink of a curve: x, and both ends.
fn verticals(figure: &Figure) -> Vec<(f64, [f64; 2])> {
    let vertical = |it: &Shape| match it {
        Shape::Line(points, Ink::Whole(_)) => match points.as_slice() {
            [[x, top], [same, bottom]] if x == same => Some((*x, [*top, *bottom])),
            _ => None,
        },
        _ => None,
    };
    figure.shapes.iter().filter_map(vertical).collect()
}

/// Where the tick of a rate is.
fn tick(figure: &Figure, label: &str) -> f64 {
    let is_tick = |it: &&Shape| matches!(it, Shape::Text(_, Anchor::Middle, text, _) if text == label);
    match figure.shapes.iter().find(is_tick) {
        Some(Shape::Text([x, _], ..)) => *x,
        _ => panic!("there is no tick at {label}"),
    }
}

#[test]
fn the_suggested_rate_is_a_line_where_it_is_on_the_axis() {
    let test = tested();
    let it = test.verdict.clone().unwrap();
    let figure = charts::loss(&test).figure();
    let lines = verticals(&figure);
    assert_eq!(lines.len(), 3, "the suggestion, the minimum, and the cut-off");
    let (low, high) = (tick(&figure, "1e-4"), tick(&figure, "1"));
    let place = |rate: f64| low + (high - low) * (rate.log10() + 4.0) / 4.0;
    for (line, rate) in lines.iter().zip([it.effective, it.minimum, test.cut_off.unwrap()]) {
        assert!((line.0 - place(rate)).abs() < 0.5, "{rate} is at {} and not at {}", line.0, place(rate));
    }
    assert_eq!(texts(&figure, "suggested: ").len(), 1);
    assert_eq!(texts(&figure, "learning rate").len(), 2, "the title and the axis");
    let words = charts::loss(&test).words();
    assert!(words.contains("by learning rate: loss from 2.3 to ") && words.contains("; suggested: "), "{words}");
}

#[test]
fn no_line_passes_through_a_name() {
    for growth in [1.0, 4.0] {
        for (from, to) in [(1e-5, 1e2), (1e-9, 1e5), (1e-3, 1e1)] {
            let test = RangeTest::new(&probes(200, from, to, super::typical), growth).unwrap();
            let figure = charts::loss(&test).figure();
            let names: Vec<_> = ["suggested", "smallest", "cut off"].iter().flat_map(|it| texts(&figure, it)).collect();
            assert_eq!(names.len(), 3);
            for ([end, y], name) in names {
                let begin = end - 6.75 * name.chars().count() as f64;
                assert!(begin >= 0.0 && end <= WIDTH, "{name} leaves the sheet");
                let through = |(x, [top, bottom]): &(f64, [f64; 2])| {
                    (begin..end - 2.0).contains(x) && (*top..*bottom).contains(&y)
                };
                assert!(!verticals(&figure).iter().any(through), "a line through {name}");
            }
        }
    }
}

#[test]
fn a_name_at_the_left_edge_stays_on_the_sheet() {
    let callout = Series { look: Look::Callout, ..Series::new("suggested: 0.000001", 2, vec![[1e-6, 1.0]]) };
    let series = vec![Series::new("loss", 0, vec![[1e-6, 2.0], [1.0, 1.0]]), callout];
    let chart = Chart {
        title: "Loss".into(),
        series,
        scale: Scale::Linear,
        across: Across::Logarithmic("learning rate"),
        marks: vec![],
    };
    let figure = chart.figure();
    let [x, _] = texts(&figure, "suggested")[0].0;
    assert!(x > 100.0 && verticals(&figure)[0].0 < 60.0);
    assert_eq!(chart.words(), "Loss, by learning rate: loss from 2 to 1; suggested: 0.000001 at 1e-6");
}

#[test]
fn the_fall_fills_the_chart_whatever_comes_after() {
    let mut probes = probes(140, 1e-5, 1e2, super::typical);
    probes[118].loss = 1e6;
    let test = RangeTest::new(&probes, 1.0).unwrap();
    let drawn = charts::loss(&test).series;
    assert_eq!((drawn[0].look, drawn[1].look), (Look::Background, Look::Line));
    let highest = drawn.iter().flat_map(|it| &it.points).map(|[_, y]| *y).fold(0.0, f64::max);
    assert!((2.3..4.0).contains(&highest), "{highest}");
    assert!(drawn[1].points.len() > 90);
}

#[test]
fn a_loss_that_comes_down_again_is_not_drawn_after_it_rose() {
    // Above where the chart ends, and below four times the minimum.
    let hill = |x: f64| {
        let fall = 2.3 - 0.8 / (1.0 + (-(x + 2.0) / 0.25).exp());
        if (0.0..1.0).contains(&x) { 4.5 } else { fall }
    };
    let test = RangeTest::new(&probes(140, 1e-5, 1e2, hill), 1.0).unwrap();
    assert!(test.averaged.last().unwrap().loss < 3.0, "it came down");
    let drawn = charts::loss(&test).series;
    assert!(drawn[..2].iter().all(|it| it.points.iter().all(|[rate, _]| *rate < 3.0)));
}

#[test]
fn a_test_without_a_suggestion_has_its_curve_and_no_mark() {
    for probes in [Vec::new(), probes(100, 1e-6, 1e-1, |_| 2.3), vec![Probe { rate: 1.0, loss: f64::NAN }]] {
        let chart = charts::loss(&RangeTest::new(&probes, 1.0).unwrap());
        assert!(texts(&chart.figure(), "suggested").is_empty());
    }
}

#[test]
fn batch_sizes_are_marked_and_memory_is_dashed_up_to_what_failed() {
    let charts = charts::trials(&analysed());
    assert_eq!(charts.iter().map(|it| it.title.as_str()).collect::<Vec<_>>(), ["Throughput, images/s", "Memory, GiB"]);
    for chart in &charts {
        let figure = chart.figure();
        assert_eq!(verticals(&figure).len(), 2);
        let (suggested, too_large) = (verticals(&figure)[0].0, verticals(&figure)[1].0);
        assert!((suggested - tick(&figure, "64")).abs() < 0.5 && (too_large - tick(&figure, "256")).abs() < 0.5);
        assert_eq!(texts(&figure, "images per replica").len(), 1);
    }
    let dashed = |chart: &Chart| chart.series.iter().filter(|it| !it.ink().dashes().is_empty()).count();
    assert_eq!((dashed(&charts[0]), dashed(&charts[1])), (0, 1));
    let limit = charts[1].series.iter().find(|it| it.look == Look::Ideal).unwrap();
    assert_eq!((limit.name.as_str(), limit.points[0][1]), ("limit", 4.0));
}
