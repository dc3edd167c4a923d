//! What `make bench-gpu` packs finds out about a machine: the runner, with programs that have a fault in the place of
//! Kiln's. With the real ones it takes a machine with a GPU.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::files::file;
use crate::skipped::skip;

/// A bundle whose programs have a fault.
fn bundle() -> TempDir {
    let place = tempdir().unwrap();
    for script in file("tests/acceptance").read_dir().unwrap().map(|entry| entry.unwrap()) {
        fs::copy(script.path(), place.path().join(script.file_name())).unwrap();
    }
    fs::create_dir(place.path().join("flex")).unwrap();
    for program in ["flex/train", "flex/engine", "flex/ops", "peer.py"] {
        fs::copy(file("tests/fixtures/planted.py"), place.path().join(program)).unwrap();
    }
    // What the runner asks of PyTorch.
    let torch =
        "__version__ = '2.9.0'\nclass version: cuda = None\nclass cuda: device_count = staticmethod(lambda: 0)\n";
    fs::write(place.path().join("torch.py"), torch).unwrap();
    fs::write(place.path().join("torchvision.py"), "__version__ = '0.24.0'\n").unwrap();
    place
}

/// What the runner says of a fault: its exit code, its output, and the state of each part.
struct Verdict {
    code: Option<i32>,
    text: String,
    states: BTreeMap<String, String>,
}

fn verdict(place: &Path, fault: &str) -> Verdict {
    let out = place.join(fault);
    let mut runner = Command::new("python3");
    runner.arg(place.join("accept.py")).args(["--backends=flex", "--stand-in", "--limit=trajectory=2"]);
    runner.arg("--out").arg(&out).current_dir(place).stdin(Stdio::null());
    let output = runner.env("PLANTED", fault).env("PYTHONPATH", place).output().unwrap();
    let results: Value = serde_json::from_slice(&fs::read(out.join("results.json")).unwrap()).unwrap();
    let text = |part: &Value, key: &str| part[key].as_str().unwrap().to_string();
    let states = results["parts"].as_array().unwrap().iter().map(|part| (text(part, "part"), text(part, "state")));
    let log = fs::read_to_string(out.join("accept.log")).unwrap();
    assert!(log.contains("$ ") && log.contains("===== tests flex"), "{log}");
    Verdict { code: output.status.code(), text: String::from_utf8(output.stdout).unwrap(), states: states.collect() }
}

impl Verdict {
    /// Fails unless the parts have these states and all others are right, and the table has these words.
    #[track_caller]
    fn is(&self, code: i32, faults: &[(&str, &str)], words: &[&str]) {
        let faults: BTreeMap<_, _> = faults.iter().map(|(part, state)| (part.to_string(), state.to_string())).collect();
        let found = self.states.iter().filter(|(_, state)| *state != "ok");
        let found = found.map(|(part, state)| (part.clone(), state.clone())).collect();
        assert_eq!((self.code, faults), (Some(code), found), "{}", self.text);
        words.iter().for_each(|word| assert!(self.text.contains(word), "'{word}' is not in: {}", self.text));
    }
}

#[test]
fn the_runner_finds_every_fault_and_goes_on_behind_it() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("there is no 'python3'");
    }
    let place = bundle();
    let find = |fault: &str| verdict(place.path(), fault);
    let copied = "a step of W = 2 x 4: waits for 3 reads, 0 come beside the next step, 0.003 MB; 1 writes, 2 MB";
    let right = ["all numbers that were due are right", "killed after 10 steps, same bits", copied];
    find("nothing").is(0, &[], &right);
    find("uncounted").is(1, &[("traffic", "wrong")], &["not right: traffic flex", "they are not counted"]);
    let shape = "1 wrong, first input gradient of [64, 64, 8, 8]";
    find("gradient").is(1, &[("kernels", "wrong")], &["not right: kernels flex", shape]);
    find("hang").is(1, &[("trajectory", "too long")], &["NO ANSWER", "no answer from 'engine' within 2 s"]);
    find("slow").is(0, &[("steps", "slow")], &["slow", "18.00"]);
    find("bits").is(1, &[("resume", "wrong")], &["ends with other bits than an undisturbed one"]);
    find("sum").is(1, &[("nccl", "wrong")], &["not right: nccl flex", "1 failed: nccl::conformance::flex::a_test"]);
    find("ranks").is(1, &[("ranks", "wrong")], &["two processes over gloo end with other bits than one: replicas"]);
    find("deaf").is(1, &[("ranks", "wrong")], &["rank 0 ended with 0, not 75"]);
    let rest = "nccl ranks tests kernels trajectory resume processes start replicas steps traffic";
    let left_out: Vec<_> = rest.split(' ').map(|part| (part, "left out")).collect();
    let missing = [&[("machine", "wrong")][..], &left_out].concat();
    find("library").is(1, &missing, &["not right: machine", "libgloo.so.0: cannot open shared object file"]);
}
