//! What `train members` prints.

use kiln::trainer::membership::members_table;
use kiln_membership::{MemberStatus, Progress, RunStatus};

#[test]
fn names_of_hosts_cannot_break_the_table() {
    let host = "\u{1b}[2Jb\n   0  c".to_string();
    let progress = Progress { step: 12, images_per_second: 99.6, waited: [4.26, 187.0], ..Progress::default() };
    let member = MemberStatus { id: 1, host, process: 7, devices: 1, replicas: 0..2, draining: false, progress };
    let why = "\u{9b}1mhost b\nleft".to_string();
    let text = members_table(&RunStatus { generation: 3, phase: "running", why, members: vec![member] });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], r"generation  3, running: \u009b1mhost b\nleft");
    assert!(lines.len() == 3 && lines[2].starts_with(r"   0  \u001b[2Jb\n   0  c "), "{lines:?}");
    assert!(lines[1].ends_with("  step     img/s  waits/min    waits"), "{lines:?}");
    assert!(lines[2].ends_with("    12       100      4.3 s    3m07s"), "{lines:?}");
}
