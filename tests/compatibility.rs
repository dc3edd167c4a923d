//! What other versions of Kiln wrote: a run of version 0.1.0 goes on, a checkpoint of a later format is refused.
//!
//! `fixtures/run-0.1.0` is a run of eight steps that was stopped after three, and the records of the same run
//! undisturbed. It is never written anew. A later version adds a run of its own beside it.

use std::fs;

use crate::command::{Workplace, copy, errors, succeeded};
use crate::files::file;

const FIXTURE: &str = "tests/fixtures/run-0.1.0";

/// A copy of the run.
fn old_run() -> Workplace {
    let place = Workplace::new();
    copy(&file(FIXTURE), &place.path("run"), true);
    place
}

#[test]
fn a_run_of_the_first_version_goes_on() {
    let place = old_run();
    succeeded(&place.bare(&["--resume", "--output-dir=run", "--max-steps=0"]).output().unwrap());
    let (run, undisturbed) = (place.run("run"), place.run("run/undisturbed"));
    assert_eq!(run.latest_step(), 8);
    assert_eq!(run.rates(), undisturbed.rates());
    assert_eq!(run.samples(), undisturbed.samples());
    // The fixture was written on another kind of processor, whose sums may round in another way.
    let (losses, expected) = (run.steps(), undisturbed.steps());
    assert_eq!(losses.len(), expected.len());
    for ((step, loss), (_, expected)) in losses.iter().zip(&expected) {
        assert!((loss / expected - 1.0).abs() < 1e-4, "step {step}: {loss} for {expected}");
    }
}

#[test]
fn a_checkpoint_of_a_later_format_is_refused_with_both_versions() {
    let place = old_run();
    let manifest = place.run("run").checkpoint("step-00000003/manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"format\": 1", "\"format\": 2").replace("\"0.1.0\"", "\"9.8.7\"")).unwrap();
    let output = place.bare(&["--resume=run/checkpoints/step-00000003"]).output().unwrap();
    let line = errors(&output).join(" ");
    let versions =
        format!("written by kiln \"9.8.7\"; this is kiln {}, which reads format 1", env!("CARGO_PKG_VERSION"));
    assert!(output.status.code() == Some(1) && line.contains(&versions), "{line}");
}
