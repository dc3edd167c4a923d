//! The event files for TensorBoard: what a reader of the format finds in them, and what TensorBoard's own does.

mod parser;
mod reader;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use kiln::metrics::{EpochRecord, Record, Sink, StepRecord, TensorBoard};
use kiln_system::Error;
use tempfile::tempdir;

use self::parser::{at, doubles, integers, text, unframe};

fn step(step: usize) -> StepRecord {
    StepRecord {
        step,
        epoch: 0.5,
        loss: 1.5,
        accuracy: 0.25,
        lr: 0.125,
        grad_norm: 2.5,
        images_per_second: Some(1024.0),
        step_seconds: 0.0625,
        memory: None,
        traffic: None,
        seconds: step as f64,
    }
}

fn epoch(step: usize) -> EpochRecord {
    EpochRecord {
        epoch: 1,
        step,
        train_loss: 1.25,
        train_accuracy: 0.5,
        val_loss: 1.75,
        val_accuracy: 0.375,
        val_top5: 0.875,
        lr: 0.125,
        images_per_second: Some(512.0),
        seconds: 3.0,
    }
}

/// The beginning of an image of 640 x 32 pixels; that there is no more, nothing here would notice.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x02\x80\0\0\0\x20";

/// The event files of a directory in the order in which TensorBoard reads them.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The payloads of the only file, as far as it is written.
fn payloads(directory: &Path) -> Vec<Vec<u8>> {
    let [file] = &files(directory)[..] else { panic!("there is one file") };
    unframe(&fs::read(file).unwrap())
}

/// The step of an event, and its scalars by tag.
fn scalars(event: &[u8]) -> (u64, Vec<(String, f32)>) {
    let values = at(event, &[5, 1]);
    let scalar = |value: &Vec<u8>| {
        let number = at(value, &[2]).remove(0);
        (text(&at(value, &[1])).remove(0), f32::from_le_bytes(number.try_into().unwrap()))
    };
    (integers(&at(event, &[2]))[0], values.iter().map(scalar).collect())
}

#[test]
fn a_file_begins_with_its_format_and_the_start_of_a_session_behind_the_step_it_goes_on_after() {
    for after_step in [0, 391] {
        let directory = tempdir().unwrap();
        let _board = TensorBoard::open(&directory.path().join("tensorboard"), after_step).unwrap();
        let events = payloads(&directory.path().join("tensorboard"));
        assert_eq!(events.len(), 2);
        assert_eq!(text(&at(&events[0], &[3])), ["brain.Event:2"]);
        assert_eq!(integers(&at(&events[1], &[2])), [after_step as u64 + 1], "step {after_step} itself is to stay");
        assert_eq!(integers(&at(&events[1], &[7, 1])), [1], "START");
    }
}

#[test]
fn a_file_is_named_after_the_time_the_host_and_the_process() {
    let directory = tempdir().unwrap();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let _board = TensorBoard::open(directory.path(), 0).unwrap();
    let name = files(directory.path())[0].file_name().unwrap().to_str().unwrap().to_string();
    let (seconds, rest) = name.strip_prefix("events.out.tfevents.").unwrap().split_once('.').unwrap();
    let (host, process) = rest.rsplit_once('.').unwrap();
    assert!((before..before + 60).contains(&seconds.parse().unwrap()), "{name}");
    assert!(!host.is_empty(), "{name}");
    assert_eq!(process, std::process::id().to_string());
}

#[test]
fn events_carry_the_time_in_seconds() {
    let directory = tempdir().unwrap();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let before = now();
    let _board = TensorBoard::open(directory.path(), 0).unwrap();
    for event in payloads(directory.path()) {
        let time = doubles(&at(&event, &[1]))[0];
        assert!((before..=now()).contains(&time), "{time}");
    }
}

#[test]
fn a_step_is_six_scalars() {
    let directory = tempdir().unwrap();
    TensorBoard::open(directory.path(), 0).unwrap().record(&Record::Step(step(7))).unwrap();
    let (number, values) = scalars(&payloads(directory.path())[2]);
    let expected = [
        ("train/loss", 1.5),
        ("train/accuracy", 0.25),
        ("train/lr", 0.125),
        ("train/grad_norm", 2.5),
        ("throughput/images_per_second", 1024.0),
        ("throughput/step_seconds", 0.0625),
    ];
    assert_eq!(number, 7);
    assert_eq!(values, expected.map(|(tag, value)| (tag.to_string(), value)));
}

#[test]
fn a_step_without_a_rate_has_no_scalar_for_it() {
    let directory = tempdir().unwrap();
    TensorBoard::open(directory.path(), 0)
        .unwrap()
        .record(&Record::Step(StepRecord { images_per_second: None, ..step(1) }))
        .unwrap();
    let (_, values) = scalars(&payloads(directory.path())[2]);
    assert!(values.len() == 5 && values.iter().all(|(tag, _)| tag != "throughput/images_per_second"), "{values:?}");
}

#[test]
fn an_epoch_is_five_scalars() {
    let directory = tempdir().unwrap();
    TensorBoard::open(directory.path(), 0).unwrap().record(&Record::Epoch(epoch(391))).unwrap();
    let (number, values) = scalars(&payloads(directory.path())[2]);
    let expected = [
        ("val/loss", 1.75),
        ("val/accuracy", 0.375),
        ("val/top5", 0.875),
        ("epoch/train_loss", 1.25),
        ("epoch/train_accuracy", 0.5),
    ];
    assert_eq!(number, 391);
    assert_eq!(values, expected.map(|(tag, value)| (tag.to_string(), value)));
}

#[test]
fn a_loss_that_is_not_finite_is_written_as_it_is() {
    let directory = tempdir().unwrap();
    let record = StepRecord { loss: f64::NAN, grad_norm: f64::INFINITY, ..step(1) };
    TensorBoard::open(directory.path(), 0).unwrap().record(&Record::Step(record)).unwrap();
    let (_, values) = scalars(&payloads(directory.path())[2]);
    assert!(values[0].1.is_nan());
    assert_eq!(values[3].1, f32::INFINITY);
}

#[test]
fn everything_is_in_the_file_at_once() {
    type Act = fn(&mut TensorBoard);
    let acts: [Act; 5] = [
        |board| board.record(&Record::Step(step(1))).unwrap(),
        |board| board.record(&Record::Step(StepRecord { seconds: 1.01, ..step(2) })).unwrap(),
        |board| board.record(&Record::Epoch(epoch(2))).unwrap(),
        |board| board.text("notes", 2, "*").unwrap(),
        |board| board.picture("samples", 2, PNG).unwrap(),
    ];
    let directory = tempdir().unwrap();
    let mut board = TensorBoard::open(directory.path(), 0).unwrap();
    for (number, act) in acts.into_iter().enumerate() {
        act(&mut board);
        assert_eq!(payloads(directory.path()).len() - 2, number + 1);
    }
}

#[test]
fn a_text_is_a_string_for_the_plugin_of_texts() {
    let directory = tempdir().unwrap();
    TensorBoard::open(directory.path(), 0).unwrap().text("configuration", 3, "| a |\n|---|\n").unwrap();
    let event = payloads(directory.path()).remove(2);
    let value = at(&event, &[5, 1]).remove(0);
    assert_eq!(integers(&at(&event, &[2])), [3]);
    assert_eq!(text(&at(&value, &[1])), ["configuration"]);
    assert_eq!(text(&at(&value, &[9, 1, 1])), ["text"]);
    assert_eq!(integers(&at(&value, &[8, 1])), [7], "DT_STRING");
    assert_eq!(text(&at(&value, &[8, 8])), ["| a |\n|---|\n"]);
}

#[test]
fn an_image_keeps_its_size_and_every_byte() {
    let directory = tempdir().unwrap();
    TensorBoard::open(directory.path(), 0).unwrap().picture("samples/augmented", 3, PNG).unwrap();
    let event = payloads(directory.path()).remove(2);
    let value = at(&event, &[5, 1]).remove(0);
    assert_eq!(integers(&at(&event, &[2])), [3]);
    assert_eq!(text(&at(&value, &[1])), ["samples/augmented"]);
    let number = |field| integers(&at(&value, &[4, field]))[0];
    assert_eq!([number(1), number(2), number(3)], [32, 640, 3], "height, width, channels");
    assert_eq!(at(&value, &[4, 4]), [PNG]);
}

#[test]
fn the_file_of_a_later_session_comes_last_even_if_the_clock_was_set_back() {
    let directory = tempdir().unwrap();
    let earlier = directory.path().join("events.out.tfevents.4102444800.node-1.17");
    fs::write(&earlier, "").unwrap();
    fs::write(directory.path().join("events.out.tfevents.not-a-number"), "").unwrap();
    let boards = [1, 2].map(|after_step| TensorBoard::open(directory.path(), after_step).unwrap());
    let files = files(directory.path());
    assert_eq!(files[0], earlier);
    let starts = files[1..3].iter().map(|file| integers(&at(&unframe(&fs::read(file).unwrap())[1], &[2]))[0]);
    assert_eq!(starts.collect::<Vec<_>>(), [2, 3]);
    drop(boards);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("tensorboard");
    fs::write(&path, "").unwrap();
    let error = TensorBoard::open(&path, 0).unwrap_err();
    assert!(matches!(&error, Error::Io { path: named, .. } if *named == path), "{error}");
}
