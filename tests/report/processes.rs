//! Processes over time, and the way from one page to another.

use std::fs;

use kiln::report::axis::Axis;
use kiln::report::chart::{Anchor, Shape};
use kiln::report::timeline::timeline;
use kiln::report::{Run, curves};
use tempfile::tempdir;

use super::{FIXTURE, copy, page};

/// A line of `metrics.jsonl` for a step at this time.
fn step(step: usize, seconds: f64, rate: f64, memory: u64) -> String {
    format!(
        "{{\"kind\":\"step\",\"step\":{step},\"epoch\":0.5,\"loss\":1,\"accuracy\":0.5,\"lr\":0.1,\"grad_norm\":1,\
         \"images_per_second\":{rate},\"step_seconds\":0.1,\"memory\":{memory},\"seconds\":{seconds}}}\n"
    )
}

fn generation(number: usize, seconds: f64, members: usize, pause: f64) -> String {
    format!(
        "{{\"kind\":\"generation\",\"generation\":{number},\"step\":1,\"members\":{members},\"why\":\"\",\
         \"pause_seconds\":{pause},\"seconds\":{seconds}}}\n"
    )
}

fn bar(shape: &Shape) -> Option<([f64; 2], [f64; 2])> {
    if let Shape::Area(at, size, ..) = shape { Some((*at, *size)) } else { None }
}

#[test]
fn each_process_has_its_curves_over_time() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    let gib = 1 << 30;
    fs::write(directory.join("metrics.jsonl"), step(1, 60.0, 100.0, gib) + &step(2, 240.0, 110.0, 2 * gib)).unwrap();
    fs::write(directory.join("rank-1.jsonl"), step(1, 90.0, 101.0, 3 * gib) + "cut off {").unwrap();
    fs::write(directory.join("rank-x.jsonl"), "no rank").unwrap();
    let charts = curves::charts(&[Run::read(&directory).unwrap()]);
    let points = |title: &str| {
        let chart = charts.iter().find(|chart| chart.title == title).unwrap();
        chart.series.iter().map(|it| (it.name.clone(), it.points.clone())).collect::<Vec<_>>()
    };
    let both = |one: Vec<[f64; 2]>, two| vec![("process 0".to_string(), one), ("process 1".to_string(), two)];
    // In minutes.
    assert_eq!(points("Throughput, images/s"), both(vec![[1.0, 100.0], [4.0, 110.0]], vec![[1.5, 101.0]]));
    assert_eq!(points("Memory of a process, GiB"), both(vec![[1.0, 1.0], [4.0, 2.0]], vec![[1.5, 3.0]]));
}

#[test]
fn the_memory_of_a_run_from_before_it_was_recorded_has_no_chart() {
    assert!(!page(std::slice::from_ref(&*FIXTURE)).contains("Memory of a process"));
}

#[test]
fn a_generation_is_as_wide_as_it_was_long_and_as_high_as_it_had_processes() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    let lines =
        [generation(1, 0.0, 2, 0.0), generation(2, 40.0, 4, 10.0), generation(3, 80.0, 1, 0.0), step(9, 100.0, 1.0, 1)];
    fs::write(directory.join("metrics.jsonl"), lines.concat()).unwrap();
    let (figure, _) = timeline(&Run::read(&directory).unwrap()).unwrap();
    let bars: Vec<_> = figure.shapes.iter().filter_map(bar).collect();
    let second = bars[2].1[0] / 20.0;
    let near = |one: f64, other: f64| (one - other).abs() < 1e-6;
    let expected = [(0.0, 30.0, 2.0), (40.0, 40.0, 4.0), (80.0, 20.0, 1.0)];
    assert_eq!(bars.len(), expected.len());
    let labels = figure.shapes.iter().filter_map(|shape| match shape {
        Shape::Text(_, Anchor::End, label, _) => Some(label.as_str()),
        _ => None,
    });
    assert_eq!(labels.collect::<Vec<_>>(), ["0", "1", "2", "3", "4"], "processes are counted");
    for ((at, size), (start, seconds, members)) in bars.iter().zip(expected) {
        assert!(
            near(at[0], bars[0].0[0] + second * start) && near(size[0], second * seconds),
            "{start}: {at:?} {size:?}"
        );
        assert!(near(size[1], bars[2].1[1] * members), "{members} processes: {size:?}");
    }
    assert!(page(&[directory]).contains("<title>3 generations of at most 4 processes, by seconds"));
    fs::write(parent.path().join("0001/metrics.jsonl"), step(1, 1.0, 1.0, 1)).unwrap();
    assert!(timeline(&Run::read(&parent.path().join("0001")).unwrap()).is_none());
}

#[test]
fn the_page_says_for_whom_others_wait_and_what_processes_do() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    let replica = |replica: usize, waited: f64, slow: &str| {
        format!(
            "{{\"replica\":{replica},\"stage\":0,\"process\":{replica},\"host\":\"<node{replica}>\",\"device\":7,\
             \"work_seconds\":0.5,\"loading_seconds\":0.1,\"waited_minute\":{waited},\"waited\":1234.4,\"slow\":{slow}}}"
        )
    };
    let record = |waited: f64, more: &str| {
        let replicas = [replica(0, 0.0, "null"), replica(1, waited, "\"loader\"")].join(",");
        format!("{{\"kind\":\"replicas\",\"step\":1,\"replicas\":[{replicas}]{more},\"seconds\":2}}\n")
    };
    let members = ",\"members\":[{\"host\":\"node9\",\"process\":4711,\"does\":\"is in reserve\"}]";
    let lines = step(1, 1.0, 1.0, 1) + &record(59.0, "") + &record(15.0, members);
    fs::write(directory.join("metrics.jsonl"), lines).unwrap();
    let page = page(&[directory]);
    for part in [
        "&lt;node1&gt;",
        "500.0 ms",
        "20 %",
        "--share:0.250",
        "15.0 s",
        "1234 s",
        "replica 1: slow, waits for its loader",
        "is in reserve",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("59.0 s"), "the last record counts");
}

#[test]
fn an_axis_of_things_has_no_halves() {
    for (most, labels) in [(0, &["0", "1"][..]), (1, &["0", "1"]), (2, &["0", "1", "2"]), (12, &["0", "5", "10", "15"])]
    {
        let axis = Axis::count(most);
        assert_eq!(axis.ticks.iter().map(|tick| axis.label(*tick)).collect::<Vec<_>>(), labels, "{most}");
    }
}

#[test]
fn compared_runs_lead_to_their_own_pages() {
    let parent = tempdir().unwrap();
    let runs = ["a b#1", "0002"].map(|name| copy(&parent, name));
    fs::write(runs[0].join("report.html"), "").unwrap();
    let sweep = parent.path().join("sweep");
    fs::create_dir(&sweep).unwrap();
    for (to, href) in [("compared.html", "a%20b%231/report.html"), ("sweep/compared.html", "../a%20b%231/report.html")]
    {
        let to = parent.path().join(to);
        kiln::report::write(&runs, &to).unwrap();
        let page = fs::read_to_string(to).unwrap();
        assert!(page.contains(&format!("<a href=\"{href}\">a b#1</a>")), "{href}");
        assert_eq!(page.matches("<a ").count(), 1, "a run without a page has no link");
    }
    kiln::report::write(&runs[..1], &runs[0].join("report.html")).unwrap();
    assert!(
        !fs::read_to_string(runs[0].join("report.html")).unwrap().contains("<a "),
        "a page does not lead to itself"
    );
}

#[test]
fn a_sweep_shows_the_accuracy_against_each_value() {
    let parent = tempdir().unwrap();
    let run = |(at, (accuracy, rate, optimizer)): (usize, (f64, &str, &str))| {
        let directory = parent.path().join(at.to_string());
        fs::create_dir(&directory).unwrap();
        let line = format!(
            "{{\"kind\":\"epoch\",\"epoch\":1,\"step\":9,\"train_loss\":1,\"train_accuracy\":0.5,\"val_loss\":1,\
             \"val_accuracy\":{accuracy},\"val_top5\":1,\"lr\":0.1,\"images_per_second\":null,\"seconds\":1}}\n"
        );
        fs::write(directory.join("metrics.jsonl"), line).unwrap();
        let varied = [("optim.learning_rate", rate), ("optim", optimizer), ("run.epochs", "1")];
        (directory, varied.map(|(key, value)| (key.to_string(), value.to_string())).into())
    };
    let runs = [(0.5, "0.1", "sgd"), (0.7, "0.1", "adamw"), (0.6, "0.01", "sgd"), (0.9, "1", "adamw")];
    let to = parent.path().join("sweep.html");
    kiln::report::write_sweep(runs.into_iter().enumerate().map(run).collect(), &to).unwrap();
    let page = fs::read_to_string(&to).unwrap();
    assert!(page.contains("<h2>Accuracy against each setting</h2>"));
    let figures: Vec<&str> = page.split("<title>Best accuracy, %, against ").skip(1).collect();
    assert_eq!(figures.len(), 1, "only numbers have an axis, and only what varies is shown");
    assert!(
        figures[0].starts_with("optim.learning_rate, by value of the setting: a run from 60 to 90; mean from 60 to 90")
    );
    assert_eq!(figures[0].split("</svg>").next().unwrap().matches("<circle").count(), 4 + 1, "runs and the legend");
    for (value, runs, best, mean) in
        [("0.01", 1, 60, 60), ("0.1", 2, 70, 60), ("1", 1, 90, 90), ("sgd", 2, 60, 55), ("adamw", 2, 90, 80)]
    {
        let cells = [runs.to_string(), format!("{best}.00 %"), format!("{mean}.00 %")];
        let cells = cells.map(|cell| format!("<td class=\"number\">{cell}</td>")).concat();
        assert!(page.contains(&format!("<th scope=\"row\">{value}</th>{cells}")), "{value}");
    }
    assert!(!self::page(std::slice::from_ref(&*FIXTURE)).contains("Accuracy against"));
}

/// A trace that starts at this second, of one thread with these phases: name, start and length in milliseconds.
fn trace(start: u64, thread: &str, phases: &[(&str, u64, u64)]) -> String {
    let name = format!("{{\"name\":\"thread_name\",\"ph\":\"M\",\"tid\":3,\"args\":{{\"name\":\"{thread}\"}}}}");
    let phase = |(name, start, length): &(&str, u64, u64)| {
        let [ts, dur] = [start, length].map(|it| it * 1000);
        format!(",{{\"name\":\"{name}\",\"ph\":\"X\",\"tid\":3,\"ts\":{ts},\"dur\":{dur}}}")
    };
    let phases: String = phases.iter().map(phase).collect();
    format!("{{\"otherData\":{{\"start\":{}}},\"traceEvents\":[{name}{phases}]}}", start * 1_000_000)
}

#[test]
fn a_step_of_stages_shows_when_each_of_them_computed() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    let settings = "[run]\naccumulation_steps = 2\n[parallel]\nstages = 2\nworld_size = 3\n";
    fs::write(directory.join("config.toml"), settings).unwrap();
    // Of the three steps the last one is neither the shortest nor the longest; it takes from 3000 to 3040 ms.
    let step = |begin, each| {
        let pass = |name, at: u64| (name, begin + at * each, each);
        [pass("forward", 0), pass("forward", 1), pass("backward", 2), pass("backward", 3)]
    };
    let first = [step(1000, 50), step(2000, 1), step(3000, 10)].concat();
    // Its process began two seconds earlier.
    let second = [step(3010, 10), step(4000, 1), step(5010, 5)].concat();
    fs::write(directory.join("trace.json"), trace(100, "replica-0", &first)).unwrap();
    fs::write(directory.join("trace-rank-1.json"), trace(98, "replica-3", &second)).unwrap();
    let run = Run::read(&directory).unwrap();
    let (figure, remark) = run.pipeline.as_ref().expect("both stages are there").figure();
    let bars: Vec<_> = figure.shapes.iter().filter_map(bar).skip(2).collect();
    // From 48 to 406 units.
    let place = |milliseconds: f64| 48.0 + (420.0 - 48.0 - 14.0) * milliseconds / 40.0;
    let expected = [0.0, 10.0, 20.0, 30.0].map(|at| (at, 10.0)).into_iter();
    let expected = expected.chain([10.0, 15.0, 20.0, 25.0].map(|at| (at, 5.0)));
    for (([left, _], [width, _]), (at, length)) in bars.iter().zip(expected.clone()) {
        assert!((left - place(at)).abs() < 0.01, "{left} instead of {}", place(at));
        assert!((width - (place(length) - place(0.0))).abs() < 0.01, "{width}");
    }
    assert_eq!(bars.len(), expected.count());
    assert!(bars[..4].iter().all(|(at, _)| at[1] < bars[4].0[1]), "the first stage is above the second");
    assert!(remark.ends_with("were idle for 0 %, 50 % of the time."), "{remark}");
    assert!(page(std::slice::from_ref(&directory)).contains("The passes of the median step"));

    fs::remove_file(directory.join("trace-rank-1.json")).unwrap();
    assert!(Run::read(&directory).unwrap().pipeline.is_none());
    assert!(page(&[directory]).contains("Where time went"));
}
