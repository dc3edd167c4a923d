//! A page that is made again and again is the page that is made anew, whatever happens to the files in between.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use kiln::report::Followed;
use tempfile::tempdir;

use crate::files::file;

fn log() -> Vec<u8> {
    fs::read(file("tests/fixtures/run-report/metrics.jsonl")).unwrap()
}

fn again(followed: &mut Followed) -> String {
    followed.hurry();
    String::clone(&followed.page())
}

#[track_caller]
fn is_as_anew(followed: &mut Followed, directory: &Path) {
    assert_eq!(again(followed), again(&mut Followed::new(directory, false).unwrap()));
}

#[test]
fn a_log_that_grows_by_any_pieces_is_the_same_log() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let whole = log();
    fs::write(&path, "").unwrap();
    let mut followed = Followed::new(directory.path(), false).unwrap();
    // Pieces end within records, at their ends, and before their line breaks.
    let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').flat_map(|(at, _)| [at, at + 1]);
    let mut ends: Vec<usize> = ends.step_by(7).chain((0..whole.len()).step_by(997)).collect();
    ends.sort_unstable();
    let mut appended = File::options().append(true).open(&path).unwrap();
    for (at, pair) in ends.windows(2).enumerate() {
        appended.write_all(&whole[pair[0]..pair[1]]).unwrap();
        if at % 5 == 0 {
            is_as_anew(&mut followed, directory.path());
        }
    }
    is_as_anew(&mut followed, directory.path());
}

#[test]
fn what_was_read_is_not_read_again() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    fs::write(&path, log()).unwrap();
    let mut followed = Followed::new(directory.path(), false).unwrap();
    let before = again(&mut followed);
    let mut log = File::options().write(true).open(&path).unwrap();
    log.write_all(&b"x".repeat(5000)).unwrap();
    log.seek(SeekFrom::End(0)).unwrap();
    log.write_all(b"{}\n").unwrap();
    let page = again(&mut followed);
    let lines = before.matches("<svg").count();
    assert_eq!(page.matches("<svg").count(), lines);
    assert!(page.contains("1 of 129 lines of metrics.jsonl are not records and are skipped, the first is line 129"));
}

#[test]
fn a_log_that_is_put_in_the_place_of_another_is_read_from_its_beginning() {
    let directory = tempdir().unwrap();
    let [path, next] = ["metrics.jsonl", "next"].map(|name| directory.path().join(name));
    let whole = log();
    fs::write(&path, &whole).unwrap();
    let mut followed = Followed::new(directory.path(), false).unwrap();
    again(&mut followed);
    // A resumed run keeps the first records and writes others after them.
    let kept = whole.len() / 2 + whole[whole.len() / 2..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for content in [&whole[..kept], &whole, b""] {
        fs::write(&next, content).unwrap();
        fs::rename(&next, &path).unwrap();
        is_as_anew(&mut followed, directory.path());
    }
    fs::remove_file(&path).unwrap();
    assert!(again(&mut followed).contains("there is no metrics.jsonl"));
}
