//! Checkpoints in an object store: a run goes on from them on another machine, and training does not wait for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::server::{Answer, Server};
use crate::command::{Workplace, errors, succeeded, until};

/// The content of every file below a directory, by path.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}

/// What the copies of a run must be: its checkpoints, and the name of the latest.
fn expected(place: &Workplace, run: &str) -> BTreeMap<String, Vec<u8>> {
    let checkpoints = place.run(run).path().join("checkpoints");
    let latest = fs::read_link(checkpoints.join("latest")).unwrap();
    let kept = |(name, _): &(String, Vec<u8>)| name.starts_with("step-");
    let mut expected: BTreeMap<_, _> = files(&checkpoints).into_iter().filter(kept).collect();
    expected.insert("latest".into(), latest.to_str().unwrap().into());
    expected
}

/// A training whose checkpoints are copied to `url`, with the credentials of a test.
fn training(place: &Workplace, run: &str, url: &str, arguments: &[&str]) -> Command {
    let mut command = place.small(run, &[&[&format!("--checkpoint-url={url}")[..]], arguments].concat());
    command.envs([("AWS_ACCESS_KEY_ID", "kiln-test-key"), ("AWS_SECRET_ACCESS_KEY", "kiln-test-secret")]);
    command
}

#[test]
fn a_run_goes_on_from_its_copies_on_another_machine() {
    let place = Workplace::new();
    place.train("calm", &["--epochs=2"]);
    let server = Server::new(&place.path(""));
    server.misbehave(|number, _| if number % 5 == 1 { Answer::Busy } else { Answer::Right });
    let urls = [format!("file://{}", place.path("files").display()), format!("{}/http", server.url)];
    for (url, name) in urls.iter().zip(["files", "http"]) {
        succeeded(&training(&place, &format!("first-{name}"), url, &["--epochs=2", "--max-steps=6"]).output().unwrap());
        // Checkpoints that newer ones overtook may be left out; copies of those that are no longer kept are gone.
        let (copies, expected) = (files(&place.path(name)), expected(&place, &format!("first-{name}")));
        assert!(copies.iter().all(|(file, content)| expected.get(file) == Some(content)), "{:?}", copies.keys());
        assert!(copies.contains_key("latest") && copies.contains_key("step-00000006/manifest.json"));
        let second = format!("second-{name}");
        let rest = [&format!("--resume={url}")[..], "--epochs=2", "--max-steps=100"];
        let said = succeeded(&place.small(&second, &rest).output().unwrap());
        assert!(said.contains(&format!("resuming    {url}/step-00000006")), "{said}");
        let calm = place.run("calm");
        assert_eq!(place.run(&second).tensors(), calm.tensors());
        assert_eq!(place.run(&second).steps(), calm.steps()[6..]);
        // The whole address of one copy, for commands that read a model.
        let one = format!("--checkpoint={url}/step-00000006");
        succeeded(&place.bare(&["evaluate", &one, "data=synthetic", "data.val_size=16"]).output().unwrap());
        // The second run copies its checkpoints to the same place.
        assert_eq!(files(&place.path(name))["latest"], b"step-00000008");
        fs::write(place.path(name).join("step-00000008/model.safetensors"), "other").unwrap();
        let lines = errors(&place.small("damaged", &rest).output().unwrap());
        assert!(lines.len() == 1 && lines[0].contains("step-00000008/model.safetensors' is damaged"), "{lines:?}");
    }
    // What goes on from an earlier step would move the latest copy back.
    let back =
        ["--epochs=2", "--resume=first-files/checkpoints/step-00000004", &format!("--checkpoint-url={}", urls[0])];
    for more in [&[][..], &["--dry-run"]] {
        let lines = errors(&place.small("first-files", &[&back[..], more].concat()).output().unwrap());
        let rule = "has a copy of step 8, but the run would resume from step 4; use the copy with --resume file://";
        assert!(lines.len() == 1 && lines[0].contains(rule), "{lines:?}");
    }
    // What names the latest copy leads nowhere else.
    fs::write(place.path("files/latest"), "../http/step-00000006").unwrap();
    let lines = errors(&place.small("astray", &["--epochs=2", &format!("--resume={}", urls[0])]).output().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("names '../http/step-00000006'"), "{lines:?}");
    let nothing = place.bare(&["--resume=file:///nowhere", "--output-dir=nowhere"]).output().unwrap();
    assert!(errors(&nothing).join(" ").contains("there is no checkpoint at 'file:///nowhere'"));
    assert!(!place.path("nowhere").exists());
}

#[test]
fn a_machine_without_a_disk_starts_the_same_command_again() {
    let place = Workplace::new();
    let url = format!("file://{}", place.path("files").display());
    let run = |directory: &str, steps: &str| {
        let arguments = ["--resume=auto", "--epochs=2", steps];
        succeeded(&training(&place, directory, &url, &arguments).output().unwrap())
    };
    run("one", "--max-steps=2");
    assert!(run("two", "--max-steps=6").contains("/step-00000002 after step 2"));
    // Its own directory comes first.
    assert!(run("two", "--max-steps=8").contains("two/checkpoints/step-00000006 after step 6"));
    let lines = errors(&training(&place, "three", &url, &["--epochs=2"]).output().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("already holds the checkpoints of another run"), "{lines:?}");
    let lines = errors(&training(&place, "three", "copies", &[]).output().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("must be a URL, got 'copies'"), "{lines:?}");
}

#[test]
fn training_does_not_wait_for_a_copy_and_a_failure_is_said_once() {
    let place = Workplace::new();
    let server = Server::new(&place.path(""));
    let url = format!("{}/copies", server.url);
    // Nothing is answered before the last step is done.
    let log = place.path("run/metrics.jsonl");
    server.misbehave(move |_, _| {
        let is_done = || fs::read_to_string(&log).is_ok_and(|text| text.contains("\"step\":8"));
        until("the training is done", is_done);
        Answer::Denied
    });
    let output = training(&place, "run", &url, &["--epochs=2", "--checkpoint-every=1steps"]).output().unwrap();
    let lines = errors(&output);
    assert_eq!((output.status.code(), lines.len()), (Some(1), 2), "{lines:?}");
    assert!(lines[0].contains("warning: 'run/checkpoints/step-") && lines[0].contains("training goes on"), "{lines:?}");
    assert!(lines[1].contains("step-00000008' was not copied") && lines[1].contains(&url), "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("403") || line.contains("AWS_ACCESS_KEY_ID")), "{lines:?}");
    assert_eq!(place.run("run").latest_step(), 8);
    let said = [String::from_utf8(output.stdout).unwrap(), lines.join("\n")].concat();
    assert!(said.contains("report      run/report.html"), "{said}");
    let saved = fs::read_to_string(place.path("run/config.toml")).unwrap();
    assert!(saved.contains(&url) && ![said, saved].concat().contains("kiln-test-"));
    let secret = url.replace("http://", "http://kiln-test-key@");
    let lines = errors(&training(&place, "other", &secret, &[]).output().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("--checkpoint-url") && !lines[0].contains("kiln-test-key"));
}
