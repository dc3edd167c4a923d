//! `train find` as a process: a real range test, real trials.

use serde_json::Value;

use crate::command::{Workplace, errors, succeeded};

const TRAINING: [&str; 6] =
    ["--", "data=synthetic", "data.train_size=200", "--width=4", "--stem=imagenet", "--world-size=2"];

fn json(place: &Workplace, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(place.path(name)).unwrap()).unwrap()
}

#[test]
fn a_range_test_trains_with_a_growing_rate_until_it_diverges() {
    let place = Workplace::new();
    let arguments = ["find", "lr", "--from=1e-4", "--to=1e5", "--steps=60", "--output-dir=here"];
    let output = place.bare(&[&arguments[..], &TRAINING].concat()).output().unwrap();
    // Whether a tiny network suggests a rate is not for this test to say.
    assert!([Some(0), Some(1)].contains(&output.status.code()), "{:?}", errors(&output));
    let rows = std::fs::read_to_string(place.path("here/find-lr.csv")).unwrap();
    let column = rows.lines().next().unwrap().split(',').position(|title| title == "learning_rate").unwrap();
    let rate = |row: &str| row.split(',').nth(column).unwrap().parse().unwrap();
    let rates: Vec<f64> = rows.lines().skip(1).map(rate).collect();
    assert!(rates.len() >= 20 && rates.len() <= 61, "{} rates", rates.len());
    assert!(rates.is_sorted_by(|one, next| one < next), "{rates:?}");
    assert!(place.path("here/find-lr.svg").is_file() && !place.path("runs").exists());
}

#[test]
fn batch_sizes_are_tried_up_to_the_largest() {
    let place = Workplace::new();
    let arguments = ["find", "batch-size", "--largest=24", "--output-dir=here"];
    let output = succeeded(&place.bare(&[&arguments[..], &TRAINING].concat()).output().unwrap());
    assert!(output.contains("tried       batch size 8") && output.contains("batch size 24"), "{output}");
    let trials = json(&place, "here/find-batch-size.json");
    assert!(trials["trials"].as_array().unwrap().len() >= 2, "{trials}");
}

#[test]
fn what_cannot_be_found_is_refused() {
    let place = Workplace::new();
    let refused = |arguments: &[&str], part: &str| {
        let output = place.bare(&[&["find"], arguments].concat()).output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert!(errors(&output).join("\n").contains(part), "{arguments:?}: {:?}", errors(&output));
    };
    refused(&["lr", "--from=1", "--to=0.1"], "--from must be below --to");
    refused(&["lr", "--from=0"], "1e-30");
    refused(&["batch-size", "--", "data=folder", "--data-dir=nowhere"], "no folder 'nowhere/train'");
    refused(&["lr", "--", "data=folder", "--data-dir=nowhere"], "no folder 'nowhere/train'");
    refused(&["lr", "--", "--learning-rate=0.1"], "train find lr sets --learning-rate itself");
    refused(&["batch-size", "--", "--batch-size=8"], "train find batch-size sets --batch-size itself");
}
