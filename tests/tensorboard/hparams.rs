//! What the HPARAMS tab is told.

use std::collections::BTreeMap;

use kiln::metrics::{Hparam, Sink, TensorBoard};
use tempfile::tempdir;

use super::parser::{at, doubles, integers, text};
use super::{hparams, payloads};

/// The messages to the plugin of hparams, by tag.
fn plugin_messages(event: &[u8]) -> Vec<(String, Vec<u8>)> {
    let message = |value: &Vec<u8>| {
        assert_eq!(text(&at(value, &[9, 1, 1])), ["hparams"]);
        (text(&at(value, &[1])).remove(0), at(value, &[9, 1, 2]).remove(0))
    };
    at(event, &[5, 1]).iter().map(message).collect()
}

#[test]
fn hparams_are_described_with_their_types_and_metrics_and_given_with_their_values() {
    let directory = tempdir().unwrap();
    TensorBoard::open(directory.path(), 0).unwrap().hparams(&hparams()).unwrap();
    let messages = plugin_messages(&payloads(directory.path())[2]);
    let [(experiment_tag, experiment), (start_tag, start)] = &messages[..] else { panic!("there are two messages") };

    assert_eq!(experiment_tag, "_hparams_/experiment");
    assert_eq!(text(&at(experiment, &[2, 4, 1])), ["amp", "lr", "optimizer"]);
    assert_eq!(integers(&at(experiment, &[2, 4, 4])), [2, 3, 1], "BOOL, FLOAT64, STRING");
    assert_eq!(text(&at(experiment, &[2, 5, 1, 2])), ["hparam/val_accuracy", "hparam/val_loss"]);

    assert_eq!(start_tag, "_hparams_/session_start_info");
    assert_eq!(text(&at(start, &[3, 1, 1])), ["amp", "lr", "optimizer"]);
    assert_eq!(integers(&at(start, &[3, 1, 2, 4])), [1]);
    assert_eq!(doubles(&at(start, &[3, 1, 2, 2])), [0.1]);
    assert_eq!(text(&at(start, &[3, 1, 2, 3])), ["sgd"]);
    assert!(doubles(&at(start, &[3, 5]))[0] > 1e9, "the time of the start");
}

#[test]
fn false_zero_and_the_empty_text_are_values_of_hparams_too() {
    let directory = tempdir().unwrap();
    let values = [Hparam::Bool(false), Hparam::Number(0.0), Hparam::Text(String::new())];
    let hparams = ["amp", "decay", "note"].map(String::from).into_iter().zip(values).collect();
    TensorBoard::open(directory.path(), 0).unwrap().hparams(&hparams).unwrap();
    let start = plugin_messages(&payloads(directory.path())[2]).remove(1).1;
    assert_eq!(integers(&at(&start, &[3, 1, 2, 4])), [0]);
    assert_eq!(doubles(&at(&start, &[3, 1, 2, 2])), [0.0]);
    assert_eq!(text(&at(&start, &[3, 1, 2, 3])), [""]);
}

#[test]
fn an_hparam_that_is_not_finite_is_given_as_text() {
    let directory = tempdir().unwrap();
    let hparams = BTreeMap::from([("clip".into(), Hparam::Number(f64::INFINITY))]);
    TensorBoard::open(directory.path(), 0).unwrap().hparams(&hparams).unwrap();
    let messages = plugin_messages(&payloads(directory.path())[2]);
    assert_eq!(integers(&at(&messages[0].1, &[2, 4, 4])), [1], "STRING");
    assert_eq!(text(&at(&messages[1].1, &[3, 1, 2, 3])), ["inf"]);
}

#[test]
fn a_complete_run_is_a_success_in_the_hparams_tab_if_it_has_a_row_there() {
    for (has_hparams, expected) in [(true, 4), (false, 2)] {
        let directory = tempdir().unwrap();
        let mut board = TensorBoard::open(directory.path(), 0).unwrap();
        if has_hparams {
            board.hparams(&hparams()).unwrap();
        }
        board.finish().unwrap();
        let events = payloads(directory.path());
        assert_eq!(events.len(), expected);
        if has_hparams {
            let (tag, message) = plugin_messages(&events[3]).remove(0);
            assert_eq!(tag, "_hparams_/session_end_info");
            assert_eq!(integers(&at(&message, &[4, 1])), [1], "SUCCESS");
            assert!(doubles(&at(&message, &[4, 2]))[0] > 1e9, "the time of the end");
        }
    }
}
