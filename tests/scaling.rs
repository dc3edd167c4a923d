//! The scaling analysis: its numbers are those of the measurements.

mod command;

use std::collections::BTreeMap;
use std::fs;

use kiln::report::chart::{Anchor, Shape};
use kiln::report::palette::Ink;
use kiln::study::scaling::{Analysis, Measurement, Mode};
use serde_json::Value;
use tempfile::tempdir;

/// A measurement of three steps around `seconds`.
fn measured(mode: Mode, replicas: usize, processes: usize, seconds: f64) -> Measurement {
    Measurement {
        mode,
        replicas,
        processes,
        devices_shared: false,
        steps: 3,
        step_seconds: vec![1.1 * seconds, 0.9 * seconds, seconds],
        images_per_step: if mode == Mode::Weak { 32 * replicas } else { 256 },
        exposed_communication: 0.02 * seconds * (replicas as f64).log2(),
        memory_bytes: (replicas as u64) << 30,
    }
}

fn analysed(measurements: &[Measurement]) -> Analysis {
    Analysis::new(measurements.to_vec(), BTreeMap::from([("device".into(), "a <script>\"&".into())])).unwrap()
}

/// Both modes, one and two processes.
fn varied() -> Vec<Measurement> {
    let mut all = Vec::new();
    for (replicas, weak, strong) in [(1, 0.1923, 0.8012), (2, 0.2017, 0.4311), (4, 0.2144, 0.2402), (8, 0.2229, 0.1487)]
    {
        all.push(measured(Mode::Weak, replicas, 1, weak));
        all.push(measured(Mode::Strong, replicas, 1, strong));
        if replicas > 1 {
            all.push(measured(Mode::Weak, replicas, 2, 1.07 * weak));
        }
    }
    all
}

/// The rows, with columns by name.
fn rows(measurements: &[Measurement]) -> Vec<Value> {
    serde_json::to_value(analysed(measurements)).unwrap()["rows"].as_array().unwrap().clone()
}

fn assert_near(value: &Value, expected: f64) {
    assert!((value.as_f64().unwrap() - expected).abs() < 1e-9, "{value} is not {expected}");
}

#[test]
fn medians_and_quartiles_are_those_of_numpy() {
    let row = |times: &[f64]| {
        let it = Measurement { step_seconds: times.to_vec(), ..measured(Mode::Weak, 2, 1, 1.0) };
        rows(&[it]).remove(0)
    };
    // numpy.quantile([...], [0.25, 0.5, 0.75])
    let four = row(&[0.4, 0.1, 0.3, 0.25]);
    assert_near(&four["step_seconds_q1"], 0.2125);
    assert_near(&four["step_seconds"], 0.275);
    assert_near(&four["step_seconds_q3"], 0.325);
    assert_near(&four["images_per_second"], 64.0 / 0.275);
    let one = row(&[0.2]);
    assert_eq!((&one["step_seconds"], &one["step_seconds_q1"]), (&0.2.into(), &0.2.into()));
    assert_eq!(row(&[0.2, 0.2, 9.0])["step_seconds"], 0.2, "a step that was interrupted changes nothing");
}

#[test]
fn speed_up_and_efficiency_are_against_the_smallest_of_the_mode() {
    let rows = rows(&[
        measured(Mode::Strong, 8, 1, 0.25),
        measured(Mode::Strong, 2, 1, 0.8),
        measured(Mode::Weak, 4, 2, 0.25),
        measured(Mode::Weak, 1, 1, 0.2),
    ]);
    let expected = [("weak", 1, 1.0, 1.0), ("weak", 4, 3.2, 0.8), ("strong", 2, 1.0, 1.0), ("strong", 8, 3.2, 0.8)];
    for (row, (mode, replicas, speed_up, efficiency)) in rows.iter().zip(expected) {
        assert_eq!((&row["mode"], &row["replicas"]), (&mode.into(), &replicas.into()));
        assert_near(&row["speed_up"], speed_up);
        assert_near(&row["efficiency"], efficiency);
    }
    assert_near(&rows[1]["exposed_share"], 0.04);
}

#[test]
fn shared_devices_are_told() {
    let share = |from: usize| {
        let it = |p| Measurement { devices_shared: p >= from, ..measured(Mode::Weak, p, 1, 0.2 * p as f64) };
        analysed(&[1, 2, 4, 8].map(it)).to_string()
    };
    assert!(!share(16).contains("shared"));
    assert!(share(4).contains("With 4, 8 replicas, replicas shared devices or cores"));
}

#[test]
fn nothing_and_a_run_without_a_measured_step_are_refused_in_one_line() {
    let refused = |all: Vec<Measurement>| Analysis::new(all, BTreeMap::new()).unwrap_err().to_string();
    assert!(refused(vec![]).contains("--replicas 1,2,4"));
    let empty = Measurement { steps: 0, step_seconds: vec![], ..measured(Mode::Weak, 2, 1, 0.2) };
    let error = refused(vec![measured(Mode::Weak, 1, 1, 0.2), empty]);
    assert!(
        error.contains("'weak scaling, 2 replicas, 1 process' has no step") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn the_terminal_shows_every_number_below_its_header() {
    let text = analysed(&varied()).to_string();
    let (weak, strong) = text.split_once("\n\n").unwrap();
    assert!(weak.starts_with("weak scaling, 32 images per replica\n"), "{text}");
    assert!(strong.starts_with("strong scaling, 256 images in all\n"), "{text}");
    let table: Vec<&str> = weak.lines().skip(1).collect();
    assert!(table[0].trim_start().starts_with("replicas  processes") && table[0].ends_with("memory"));
    assert!(table.iter().all(|line| line.chars().count() == table[0].chars().count()), "columns end below each other");
    let cells: Vec<&str> = table[6].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let expected =
        ["8", "1", "own", "1148", "1094 to 1209", "223 ms", "6.90", "86.3 %", "6.0 %", "8.00 GiB"].map(String::from);
    assert_eq!(cells, expected, "{text}");
}

#[test]
fn all_files_are_written_and_can_be_read_again() {
    let (directory, all) = (tempdir().unwrap(), varied());
    let (analysis, to) = (analysed(&all), directory.path().join("new/place"));
    analysis.write(&to).unwrap();

    let text = fs::read_to_string(to.join("scaling.csv")).unwrap();
    let head = "mode,replicas,processes,devices_shared,steps,images_per_step,step_seconds,step_seconds_q1,\
                step_seconds_q3,images_per_second,speed_up,efficiency,exposed_communication,exposed_share,memory_bytes";
    assert_eq!((text.lines().next(), text.lines().count()), (Some(head), 1 + all.len()));
    for (line, row) in text.lines().skip(1).zip(rows(&all)) {
        let numbers = line.split(',').zip(head.split(',')).filter_map(|(cell, name)| Some((cell.parse().ok()?, name)));
        assert!(numbers.into_iter().all(|(cell, name): (f64, _)| row[name].as_f64() == Some(cell)), "{line}");
    }
    let json: Value = serde_json::from_slice(&fs::read(to.join("scaling.json")).unwrap()).unwrap();
    let read: Vec<Measurement> = serde_json::from_value(json["measurements"].clone()).unwrap();
    assert_eq!(analysed(&read).to_string(), analysis.to_string());
    assert_eq!(json["about"]["device"], "a <script>\"&");
    let picture = fs::read_to_string(to.join("scaling.svg")).unwrap();
    for title in ["Speed-up, weak scaling", "Efficiency in %, weak scaling", "Speed-up, strong scaling"] {
        assert!(picture.contains(title), "{title}");
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), 3);
}

#[test]
fn a_place_that_cannot_be_written_is_named_and_nothing_is_left_there() {
    let directory = tempdir().unwrap();
    fs::create_dir(directory.path().join("scaling.svg")).unwrap();
    let error = analysed(&varied()).write(directory.path()).unwrap_err().to_string();
    assert!(error.contains("scaling.svg") && error.lines().count() == 1, "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_chart_has_marks_where_it_was_measured_beside_the_ideal() {
    let charts = analysed(&[1, 2, 4].map(|p| measured(Mode::Weak, p, 1, 0.2 + 0.01 * p as f64))).charts();
    assert_eq!(charts.len(), 2);
    let figure = charts[0].figure();
    let plotted = figure.shapes.iter().filter(|it| matches!(it, Shape::Dot([_, y], Ink::Whole(0)) if *y > 48.0));
    assert_eq!(plotted.count(), 3);
    let tick = |it: &Shape| match it {
        Shape::Text([_, y], Anchor::Middle, text, _) if figure.height - y > 20.0 => Some(text.clone()),
        _ => None,
    };
    assert_eq!(figure.shapes.iter().filter_map(tick).collect::<Vec<_>>(), ["1", "2", "4"]);
    let words = charts[0].words();
    assert_eq!(words, "Speed-up, weak scaling, by replicas: 1 process from 1 to 3.5; ideal from 1 to 4");
    assert!(charts[1].words().ends_with("ideal from 100 to 100"), "{}", charts[1].words());
}
