//! What TensorBoard's own reader finds, where TensorBoard is installed.

use std::fs::File;
use std::path::Path;

use kiln::metrics::{Record, Sink, StepRecord, TensorBoard};
use serde_json::{Value, json};
use tempfile::tempdir;

use super::{PNG, epoch, files, step};
use crate::python::ask;

/// What TensorBoard's own reader finds; `None` where TensorBoard is not installed.
fn read_by_tensorboard(directory: &Path) -> Option<Value> {
    Some(serde_json::from_str(&ask("tensorboard", "read_events.py", &[directory])?).unwrap())
}

#[test]
fn tensorboard_reads_everything_that_is_written() {
    let directory = tempdir().unwrap();
    let mut board = TensorBoard::open(directory.path(), 0).unwrap();
    board.text("configuration", 0, "# Kiln").unwrap();
    board.picture("samples", 0, PNG).unwrap();
    board.record(&Record::Step(step(1))).unwrap();
    board.record(&Record::Epoch(epoch(1))).unwrap();
    board.finish().unwrap();
    let Some(found) = read_by_tensorboard(directory.path()) else { return };
    let expected = json!({
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
        first.record(&Record::Step(step(number))).unwrap();
    }
    first.record(&Record::Epoch(epoch(5))).unwrap();
    drop(first);
    // A kill cuts the last record off.
    let file = File::options().write(true).open(&files(directory.path())[0]).unwrap();
    file.set_len(file.metadata().unwrap().len() - 5).unwrap();

    let mut second = TensorBoard::open(directory.path(), 3).unwrap();
    for number in 4..=6 {
        second.record(&Record::Step(StepRecord { loss: 0.5, ..step(number) })).unwrap();
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
    first.record(&Record::Step(step(3))).unwrap();
    first.record(&Record::Step(step(5))).unwrap();
    first.record(&Record::Epoch(epoch(5))).unwrap();
    drop((first, TensorBoard::open(directory.path(), 3).unwrap()));
    let Some(found) = read_by_tensorboard(directory.path()) else { return };
    assert_eq!(found["scalars"]["train/loss"], json!([[3, 1.5]]));
    assert_eq!(found["scalars"]["val/loss"], json!([]));
}
