//! Other programs as judges: what Python makes of our files.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::file;
use crate::skipped::skip;

/// What a script of `tests/fixtures` prints, run by the Python of `make setup-tch`; `None`, with a word why, where one
/// of `modules` is not installed.
#[track_caller]
pub fn ask(modules: &str, script: &str, arguments: &[&Path]) -> Option<String> {
    let venv = std::env::var_os("KILN_VENV").map_or(".venv".into(), PathBuf::from);
    let python = || Command::new(venv.join("bin/python"));
    let output = python().arg(file("tests/fixtures").join(script)).args(arguments).output();
    // PyTorch takes seconds to import: whether it can be is a question only where the script failed.
    let has_failed = !output.as_ref().is_ok_and(|output| output.status.success());
    let import = format!("import {modules}");
    if has_failed && !python().args(["-c", &import]).output().is_ok_and(|output| output.status.success()) {
        skip(&format!("'{}' cannot import {modules}; make setup-tch installs them", venv.display()));
        return None;
    }
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}
