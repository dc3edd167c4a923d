//! What TensorBoard's own reader finds, where TensorBoard is installed.

use std::fs::File;
use std::path::Path;

use kiln::metrics::{Sink, StepRecord, TensorBoard};
use serde_json::{Value, json};
use tempfile::tempdir;

use super::{PNG, epoch, files, hparams, step};
use crate::python::ask;

/// What TensorBoard's own reader finds; `None` where TensorBoard is not installed.
fn read_by_tensorboard(directory: &Path) -> Option<Value> {
    Some(serde_json::from_str(&ask("tensorboard", "read_events.py", &[directory])?).unwrap())
}

#[test]
fn tensorboard_reads_everything_that_is_written() {
    let directory = tempdir().unwrap();
    let mut board = TensorBoard::open(directory.path(), 0).unwrap();
    board.hparams(&hparams()).unwrap();
    board.text("configuration", 0, "# Kiln").unwrap();
    board.image("samples", 0, PNG, 640, 32).unwrap();
    board.step(&step(1)).unwrap();
    board.epoch(&epoch(1)).unwrap();
    board.finish().unwrap();
    let Some(found) = read_by_tensorboard(directory.path()) else { return };
    let expected = json!({
        "hparams": ["_hparams_/experiment", "_hparams_/session_end_info", "_hparams_/session_start_info"],
        "images": { "samples": [[0, 640, 32]] },
        "scalars": {
            "train/loss": [[1, 1.5]],
            "train/accuracy": [[1, 0.25]],
            "train/lr": [[1, 0.125]],
            "train/grad_norm": [[1, 2.5]],
            "throughput/images_per_second": [[1, 1024.0]],
            "throughput/step_seconds": [[1, 0.0625]],
            "val/loss": [[1, 1.75]],
            "val/accuracy": [[1, 0.375]],
            "val/top5": [[1, 0.875]],
            "epoch/train_loss": [[1, 1.25]],
            "epoch/train_accuracy": [[1, 0.5]],
            "hparam/val_accuracy": [[1, 0.375]],
            "hparam/val_loss": [[1, 1.75]],
        },
        "text": { "configuration": [[0, "# Kiln"]] },
    });
    assert_eq!(found, expected);
}

#[test]
fn tensorboard_shows_every_step_of_a_resumed_run_once() {
    let directory = tempdir().unwrap();
    let mut first = TensorBoard::open(directory.path(), 0).unwrap();
    for number in 1..=5 {
        first.step(&step(number)).unwrap();
    }
    first.epoch(&epoch(5)).unwrap();
    drop(first);
    // A kill cuts the last record off.
    let file = File::options().write(true).open(&files(directory.path())[0]).unwrap();
    file.set_len(file.metadata().unwrap().len() - 5).unwrap();

    let mut second = TensorBoard::open(directory.path(), 3).unwrap();
    for number in 4..=6 {
        second.step(&StepRecord { loss: 0.5, ..step(number) }).unwrap();
    }
    drop(second);
    let Some(found) = read_by_tensorboard(directory.path()) else { return };
    assert_eq!(found["scalars"]["train/loss"], json!([[1, 1.5], [2, 1.5], [3, 1.5], [4, 0.5], [5, 0.5], [6, 0.5]]));
    assert_eq!(found["scalars"]["val/loss"], Value::Null);
}

#[test]
fn tensorboard_forgets_what_a_resumed_run_has_not_come_to_again() {
    let directory = tempdir().unwrap();
    let mut first = TensorBoard::open(directory.path(), 0).unwrap();
    first.step(&step(3)).unwrap();
    first.step(&step(5)).unwrap();
    first.epoch(&epoch(5)).unwrap();
    drop((first, TensorBoard::open(directory.path(), 3).unwrap()));
    let Some(found) = read_by_tensorboard(directory.path()) else { return };
    assert_eq!(found["scalars"]["train/loss"], json!([[3, 1.5]]));
    assert_eq!(found["scalars"]["val/loss"], json!([]));
}
