//! What a test cannot do on this machine, and why.

use std::io::Write;

/// Says why a test is skipped: past the harness, which shows nothing of a test that passes, and in the list that
/// `KILN_TEST_SKIPPED` names, which `make` shows behind everything else.
pub fn skip(reason: &str) {
    let reason = reason.trim_end();
    std::io::stderr().write_all(format!("skipped: {reason}\n").as_bytes()).unwrap();
    if let Some(list) = std::env::var_os("KILN_TEST_SKIPPED") {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        let mut list = std::fs::File::options().append(true).create(true).open(list).unwrap();
        list.write_all(format!("{test}: {reason}\n").as_bytes()).unwrap();
    }
}
