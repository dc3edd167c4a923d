//! What is written: the numbers in the files are those that were measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kiln::report::svg;
use kiln::study::finding::{Analysis, RangeTest, Suggestion, Trial, charts};
use serde_json::Value;
use tempfile::tempdir;

use super::{about, analysed, probes, tested, too_large};

/// The rows of a table, with columns by name.
fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    csv::Reader::from_path(path).unwrap().deserialize().map(|row| row.unwrap()).collect()
}

#[test]
fn every_step_of_the_test_is_in_the_files_to_the_last_bit() {
    let (directory, test) = (tempdir().unwrap(), tested());
    let to = directory.path().join("new/place");
    test.write(&to, &about()).unwrap();

    let rows = rows(&to.join("find-lr.csv"));
    assert_eq!(rows.len(), 142);
    for (at, (row, probe)) in rows.iter().zip(&test.probes).enumerate() {
        let number = |name: &str| row[name].parse::<f64>().ok();
        assert_eq!((number("step"), number("learning_rate")), (Some(at as f64 + 1.0), Some(probe.rate)));
        assert!(number("loss") == Some(probe.loss) || row["loss"] == "NaN" && probe.loss.is_nan());
        assert_eq!(number("averaged_loss"), test.averaged.get(at).map(|it| it.loss));
        assert_eq!(number("averaged_learning_rate"), test.averaged.get(at).map(|it| it.rate));
    }
    let json: Value = serde_json::from_slice(&fs::read(to.join("find-lr.json")).unwrap()).unwrap();
    let read: Suggestion = serde_json::from_value(json["suggestion"].clone()).unwrap();
    assert_eq!(Ok(read), test.verdict);
    assert_eq!(json["probes"].as_array().unwrap().len(), 142);
    assert_eq!(
        (json["probes"][3]["loss"].as_f64(), json["probes"][140]["loss"].is_null()),
        (Some(test.probes[3].loss), true)
    );
    assert_eq!((json["growth"].as_f64(), json["about"]["device"].as_str()), (Some(4.0), Some("a <script>\"&")));
    assert_eq!(fs::read_to_string(to.join("find-lr.svg")).unwrap(), svg::file(&charts::loss(&test).figure()));
    assert_eq!(fs::read_dir(&to).unwrap().count(), 3);
}

#[test]
fn a_test_that_proves_nothing_has_a_note_that_says_so() {
    let (directory, flat) = (tempdir().unwrap(), probes(100, 1e-6, 1e-2, |_| 2.3));
    RangeTest::new(&flat, 1.0).unwrap().write(directory.path(), &about()).unwrap();
    let json: Value = serde_json::from_slice(&fs::read(directory.path().join("find-lr.json")).unwrap()).unwrap();
    let note = json["notes"][0].as_str().unwrap();
    assert!(note.starts_with("no suggestion: the loss never fell; try a wider range with --to 0.1"), "{note}");
    assert!(json["suggestion"].is_null());
}

#[test]
fn every_trial_is_in_the_files_to_the_last_bit() {
    let (directory, analysis) = (tempdir().unwrap(), analysed());
    analysis.write(directory.path(), &about()).unwrap();
    let file = |ending: &str| directory.path().join(format!("find-batch-size.{ending}"));

    let rows = rows(&file("csv"));
    assert_eq!(rows.iter().map(|row| &row["batch_size"]).collect::<Vec<_>>(), ["8", "16", "32", "64", "128", "256"]);
    let cells = |row: usize| ["images_per_second", "memory_bytes", "fits", "why"].map(|name| rows[row][name].as_str());
    assert_eq!(cells(3), ["975.25", "1887436800", "true", ""]);
    assert_eq!(cells(5), ["", "", "false", "<img src=x onerror=alert(1)> \"&' \u{7}"]);
    let json: Value = serde_json::from_slice(&fs::read(file("json")).unwrap()).unwrap();
    let read: Vec<Trial> = serde_json::from_value(json["trials"].clone()).unwrap();
    assert_eq!(Analysis::new(read, json["memory_limit"].as_u64()).unwrap(), analysis);
    assert_eq!((json["suggestion"].as_u64(), json["largest"].as_u64()), (Some(64), Some(128)));
    assert!(fs::read_to_string(file("svg")).unwrap().contains("suggested: 64"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
}

#[test]
fn nothing_that_fits_has_files_too() {
    let directory = tempdir().unwrap();
    Analysis::new(vec![too_large(1, "")], None).unwrap().write(directory.path(), &BTreeMap::new()).unwrap();
    let json = fs::read_to_string(directory.path().join("find-batch-size.json")).unwrap();
    assert!(json.contains("no suggestion: a batch of 1") && directory.path().join("find-batch-size.svg").is_file());
}
