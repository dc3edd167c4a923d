//! The order of a library's stream and a backend's, by a stand-in for CUDA's driver, which lists the calls that set it.

use std::process::Command;

use kiln_ops::nvidia::Stream;
use tempfile::tempdir;

use crate::compiled::{before_others, compiled};

/// Set for the process that loads the stand-in.
const INSIDE: &str = "KILN_TEST_STREAMS";

#[test]
#[cfg(target_os = "linux")]
fn a_stream_follows_the_default_one_or_all_and_precedes_them() {
    if std::env::var_os(INSIDE).is_some() {
        return in_order();
    }
    let place = tempdir().unwrap();
    if !compiled("driver.c", &place.path().join("libcuda.so.1")) {
        return;
    }
    let calls = |fault: &str| {
        let name = "streams::a_stream_follows_the_default_one_or_all_and_precedes_them";
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", name, "--nocapture", "--test-threads=2"]).env(INSIDE, "1").env("KILN_STAND_IN", fault);
        let output = inside.env("LD_LIBRARY_PATH", before_others(place.path())).output().unwrap();
        let (said, is_order) = (String::from_utf8(output.stdout).unwrap(), |line: &&str| line.contains(" after "));
        said.lines().filter(is_order).map(str::to_string).collect::<Vec<_>>()
    };
    let default = ["event 3 after stream 0", "stream 2 after event 3"];
    let all =
        ["event 4 after all streams", "stream 2 after event 4", "event 5 after stream 2", "all streams after event 5"];
    assert_eq!(calls("nothing"), [&default[..], &all[..]].concat());
    assert_eq!(calls("unmarked")[..2], default);
    assert_eq!(
        calls("unmarked").last().unwrap(),
        "nothing after CUDA's driver: error 801 when it was to mark all streams"
    );
}

fn in_order() {
    let stream = Stream::new(0).unwrap();
    let mark = stream.mark().unwrap();
    stream.wait_for(&mark).unwrap();
    match stream.follow_all() {
        Ok(()) => stream.precede_all().unwrap(),
        Err(why) => println!("nothing after {why}"),
    }
}
