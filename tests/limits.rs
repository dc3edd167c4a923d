//! Limits of the shell on memory and open files: a run that they end says so.

use std::process::{Command, Stdio};

use crate::command::{Workplace, errors, succeeded};

/// The last line of a program under this limit of the shell, which ends it.
fn limited(limit: &str, arguments: &[&str]) -> String {
    let place = Workplace::new();
    let mut train = Command::new("sh");
    train.args(["-c", "ulimit $0 && exec \"$@\"", limit]).arg(crate::command::train()).args(arguments);
    let train = train.env("XDG_STATE_HOME", crate::command::scratch()).env("RUST_BACKTRACE", "0");
    let output = train.current_dir(place.path("")).stdin(Stdio::null()).output().unwrap();
    let lines = errors(&output);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{}: {lines:?}", output.status);
    lines.last().unwrap().clone()
}

#[test]
fn a_model_that_memory_does_not_hold_ends_with_a_sentence() {
    let run = ["data=synthetic", "--width=512", "--threads=1", "--progress=none"];
    let line = limited("-d 409600", &[&run[..], &["--backend=flex"]].concat());
    assert!(line.contains("for lack of memory: 'ulimit -d' allows 409600 KiB; raise it"), "{line}");
    if cfg!(feature = "tch") {
        let line = limited("-d 409600", &[&run[..], &["--backend=tch"]].concat());
        assert!(line.contains("lower --batch-size") && !line.contains("frame #"), "{line}");
    }
}

#[test]
fn the_estimate_of_memory_counts_images_and_leaves_out_what_frozen_layers_do_not_keep() {
    let place = Workplace::new();
    let line = ["data=synthetic", "data.train_size=2000", "data.val_size=100", "--image-size=224", "--stem=imagenet"];
    let memory = |more: &str| {
        let arguments = [&line[..], &["--backend=flex", "--dry-run", more]].concat();
        let plan = succeeded(&place.bare(&arguments).output().unwrap());
        plan.lines().find(|line| line.starts_with("memory")).unwrap().to_string()
    };
    // 2100 x 3 x 224 x 224 bytes.
    assert!(
        memory("--freeze=none")
            .ends_with("958 MiB per replica, 1.39 GiB in this process including 301 MiB of images (estimate)"),
        "{}",
        memory("--freeze=none")
    );
    let few = memory("--freeze=backbone");
    assert!(few.contains("about 263 MiB per replica"), "{few}");
    let again = memory("--grad-checkpointing");
    assert!(again.contains("about 685 MiB per replica"), "{again}");
}

#[test]
#[cfg(feature = "gloo")]
fn too_few_open_files_for_a_job_are_refused() {
    let job = ["--elastic=1:2", "--world-size=2", "--gpu-ids=0", "--dist-url=tcp://127.0.0.1:1", "data=synthetic"];
    let line = limited("-n 16", &job);
    assert!(line.contains("needs at least 64 open files per process, but the system allows '16'"), "{line}");
}
