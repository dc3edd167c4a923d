//! Commands of several processes.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use super::*;
use crate::command::{free_port, kill, signal, until, wait};

/// A place with data and a secret that is nobody else's to read.
fn with_secret() -> Workplace {
    let place = Workplace::new();
    sample(&place);
    std::fs::write(place.path("secret"), "0123456789abcdef0123").unwrap();
    std::fs::set_permissions(place.path("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    place
}

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// All end well; what they said.
#[track_caller]
fn end(children: Vec<Child>) -> Vec<String> {
    children.into_iter().map(|child| succeeded(&child.wait_with_output().unwrap())).collect()
}

/// What the second of two processes says on its own terminal.
const SECOND: &str = "rank 1 of 2  takes part; rank 0 shows the progress\nrank 1 of 2  done\n";

#[test]
fn processes_by_their_ranks() {
    let place = with_secret();
    let address = format!("127.0.0.1:{}", free_port());
    let pair: Vec<Line> = lines(Kind::Together).into_iter().filter(|line| line.text.contains("--rank")).collect();
    assert_eq!(pair.len(), 2);
    let start = |line: &Line| start(line.command(&place, &[("192.168.1.1:23456", &address)], &SHORT));
    let said = end(pair.iter().map(start).collect());
    assert!(said[0].contains("checkpoint  runs/0001") && said[1] == SECOND, "{said:?}");
}

#[test]
fn processes_by_their_launchers_variables() {
    let place = with_secret();
    let port = free_port().to_string();
    let all = lines(Kind::Together).into_iter().filter(|line| line.text.starts_with("RANK="));
    for line in all {
        let start = |rank: &str| {
            let mut command = line.command(&place, &[], &[&SHORT[..], &["--world-size=2"]].concat());
            command.envs(line.front().iter().filter_map(|word| word.split_once('=')));
            command.env("RANK", rank).env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            start(command)
        };
        let said = end(["0", "1"].map(start).into());
        assert!(said[0].contains("checkpoint  runs/0001") && said[1] == SECOND, "{said:?}");
    }
}

#[test]
fn processes_of_a_launch() {
    let place = with_secret();
    for line in [Kind::Together, Kind::Elastic].into_iter().flat_map(lines) {
        if line.words().first() == Some(&"launch") {
            let said = end(vec![start(line.command(&place, &[], &SHORT))]);
            assert!(said[0].contains("checkpoint"), "'{}': {said:?}", line.text);
        }
    }
}

/// The service, three processes, a list of them, a leave in good order, and one process by itself.
#[test]
fn processes_that_come_and_go() {
    let place = with_secret();
    let port = free_port().to_string();
    let url = format!("tcp://127.0.0.1:{port}");
    let replaced = [("node1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("23456", &port)];
    let all = lines(Kind::Elastic);
    let line = |part: &str| all.iter().find(|line| line.text.contains(part)).unwrap();
    let mut rendezvous = start(line("train rendezvous").command(&place, &replaced, &[]));
    until("the rendezvous listens", || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok());
    let long = [&SHORT[..], &["--max-steps=0", "--epochs=1000", "--output-dir=run", "--threads=1"]].concat();
    let join = || {
        let mut command = line("--elastic 1:4 --world-size 8 --dist-url").command(&place, &replaced, &long);
        // Nobody reads the many lines of a thousand epochs.
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut members: Vec<Child> = (0..3).map(|_| join()).collect();
    until("all take part", || {
        // Before the first one has come, there is no list, and before the first generation nobody has a rank.
        let output = line("members --dist-url tcp").command(&place, &replaced, &[]).output().unwrap();
        let list = String::from_utf8(output.stdout).unwrap();
        list.lines().filter(|line| line.trim_start().starts_with(['0', '1', '2'])).count() == 3
    });
    let drain = line("--drain");
    let drain = Line { text: drain.text.replace(" ...", &format!(" {url} --job-secret-file secret")) };
    let list = succeeded(&drain.command(&place, &replaced, &[]).output().unwrap());
    assert!(list.contains("  leaves"), "{list}");
    until("one leaves", || members.iter_mut().any(|member| member.try_wait().unwrap().is_some()));
    let gone = members.iter_mut().position(|member| member.try_wait().unwrap().is_some()).unwrap();
    let gone = members.remove(gone);
    assert_eq!(gone.wait_with_output().unwrap().status.code(), Some(0));
    for mut member in members {
        signal(&member, "TERM");
        assert_eq!(wait(&mut member), Some(143));
    }
    kill(&mut rendezvous);
    let alone = line("train --elastic --gpu-ids");
    let said = succeeded(&alone.command(&place, &[], &[&SHORT[..], &["--world-size=2"]].concat()).output().unwrap());
    assert!(said.contains("checkpoint"), "{said}");
}
