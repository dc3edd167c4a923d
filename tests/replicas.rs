//! The log of a run says how long its replicas worked in a step and waited for each other.

use std::path::Path;
#[cfg(feature = "gloo")]
use std::process::{Child, Command, Stdio};
#[cfg(feature = "gloo")]
use std::time::Duration;

use kiln::metrics::{Record, ReplicasRecord};

use crate::command::Workplace;
#[cfg(feature = "gloo")]
use crate::command::{errors, free_port, signal, succeeded};
#[cfg(feature = "gloo")]
use crate::skipped::skip;

/// Those of a run's log.
fn records(run: &Path) -> Vec<ReplicasRecord> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let record = |line: &str| match serde_json::from_str(line).unwrap() {
        Record::Replicas(record) => Some(record),
        _ => None,
    };
    text.lines().filter_map(record).collect()
}

#[test]
fn the_last_record_has_what_each_replica_did() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2"]);
    let last = records(&place.path("run")).pop().unwrap();
    let named: Vec<_> = last.replicas.iter().map(|it| (it.replica, it.process, it.device, it.host.as_str())).collect();
    assert_eq!((last.step, named), (8, vec![(0, 0, 0, ""), (1, 0, 0, "")]));
    assert!(last.replicas.iter().all(|it| it.work_seconds > 0.0 && it.work_seconds >= it.loading_seconds));
    assert!(last.replicas.iter().any(|it| it.waited > 0.0 && it.waited >= it.waited_minute), "{last:?}");
    let page = std::fs::read_to_string(place.path("run/report.html")).unwrap();
    assert!(page.contains("Waited for in a minute"));
    place.train("alone", &["--world-size=1", "--max-steps=3"]);
    assert_eq!(records(&place.path("alone")), []);
}

#[test]
fn a_run_that_goes_on_has_each_record_once() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2", "--max-steps=4"]);
    let first = records(&place.path("run"));
    place.train("run", &["--epochs=2", "--resume"]);
    let all = records(&place.path("run"));
    assert!(all.starts_with(&first) && all.last().is_some_and(|it| it.step == 8), "{all:?}");
    assert!(all.windows(2).all(|pair| pair[0].step < pair[1].step), "{all:?}");
}

#[cfg(feature = "gloo")]
#[test]
fn replicas_of_several_processes_have_their_machine() {
    let place = Workplace::new();
    succeeded(&place.launch(2, "run", &["--world-size=4", "--batch-size=2", "--epochs=2"]).output().unwrap());
    let last = records(&place.path("run")).pop().unwrap();
    let processes: Vec<_> = last.replicas.iter().map(|it| (it.replica, it.process, it.host.is_empty())).collect();
    assert_eq!(processes, [(0, 0, false), (1, 0, false), (2, 1, false), (3, 1, false)]);
    assert_eq!(records(&place.path("run")).len(), 1, "the first process tells for all");
    assert!(!std::fs::read_to_string(place.path("run/rank-1.jsonl")).unwrap().contains("\"replicas\""));
    let (of_members, run) = (records(&place.path("run")), "elastic");
    assert!(of_members[0].members.is_empty());
    succeeded(&place.launch(2, run, &["--elastic=2:2", "--world-size=4", "--batch-size=2"]).output().unwrap());
    let last = records(&place.path(run)).pop().unwrap();
    let does: Vec<_> = last.members.iter().map(|it| it.does.as_str()).collect();
    assert_eq!(does, ["computes replicas 0 to 1", "computes replicas 2 to 3"]);
    assert!(last.replicas.iter().all(|it| !it.host.is_empty() && it.process == it.replica / 2), "{last:?}");
}

/// Two hosts of their own, 10.98.0.1 and 10.98.0.2, on one link.
#[cfg(feature = "gloo")]
struct Hosts([String; 2]);

#[cfg(feature = "gloo")]
impl Hosts {
    /// The second one sends 20 Mbit/s at most.
    fn new() -> Result<Self, String> {
        let hosts = Self(["a", "b"].map(|name| format!("kiln-{}-{name}", std::process::id())));
        let [first, second] = &hosts.0;
        for name in &hosts.0 {
            configured(&format!("ip netns add {name}"))?;
            configured(&format!("ip -n {name} link set lo up"))?;
        }
        configured(&format!("ip link add eth0 netns {first} type veth peer name eth0 netns {second}"))?;
        for (place, name) in (1..).zip(&hosts.0) {
            configured(&format!("ip -n {name} address add 10.98.0.{place}/24 dev eth0"))?;
            configured(&format!("ip -n {name} link set eth0 up"))?;
        }
        configured(&format!("tc -n {second} qdisc add dev eth0 root tbf rate 20mbit burst 32k latency 50ms"))?;
        Ok(hosts)
    }

    fn run(&self, host: usize, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.0[host]]).arg(command.get_program()).args(command.get_args());
        inside.current_dir(command.get_current_dir().unwrap());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}

#[cfg(feature = "gloo")]
impl Drop for Hosts {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| drop(configured(&format!("ip netns delete {name}"))));
    }
}

#[cfg(feature = "gloo")]
fn configured(words: &str) -> Result<(), String> {
    let mut words = words.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(errors(&output).join(" ")) }
}

/// One of the two processes of a training that meet there.
#[cfg(feature = "gloo")]
fn process(place: &Workplace, rank: usize, [address, port]: [&str; 2], arguments: &[&str]) -> Command {
    let mut process = place.small("run", &[&["--world-size=2", "--insecure"], arguments].concat());
    process.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
    process.env("MASTER_ADDR", address).env("MASTER_PORT", port);
    process
}

#[cfg(feature = "gloo")]
fn started(mut process: Command) -> Child {
    process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[cfg(feature = "gloo")]
#[test]
fn others_wait_for_a_replica_whose_host_sends_slowly() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => return skip(&format!("no hosts on a slow link, which needs ip, tc and root: {why}")),
    };
    let place = Workplace::new();
    let start = |rank| {
        let process = process(&place, rank, ["10.98.0.1", "29500"], &["--width=16", "--max-steps=6"]);
        started(hosts.run(rank, &process))
    };
    for process in [0, 1].map(start) {
        succeeded(&process.wait_with_output().unwrap());
    }
    let last = records(&place.path("run")).pop().unwrap();
    let [fast, slow] = &last.replicas[..] else { panic!("{last:?}") };
    assert!(slow.sending_seconds > 1.5 * fast.sending_seconds, "{last:?}");
    assert!(slow.waited > 0.5 * slow.sending_seconds && slow.waited > fast.waited, "{last:?}");
}

#[cfg(feature = "gloo")]
#[test]
fn others_wait_for_a_replica_whose_processor_is_slow() {
    let place = Workplace::new();
    let port = free_port().to_string();
    let start = |rank| started(process(&place, rank, ["127.0.0.1", &port], &["--epochs=8"]));
    let [fast, mut slow] = [0, 1].map(start);
    // It has a seventh of the time. Who was stopped comes before who ran: on a machine whose processors are shared by
    // many, a third is no less than the other one gets.
    while slow.try_wait().unwrap().is_none() {
        for (name, share) in [("STOP", 6), ("CONT", 1)] {
            signal(&slow, name);
            std::thread::sleep(share * Duration::from_millis(20));
        }
    }
    for process in [fast, slow] {
        succeeded(&process.wait_with_output().unwrap());
    }
    let last = records(&place.path("run")).pop().unwrap();
    let [fast, slow] = &last.replicas[..] else { panic!("{last:?}") };
    assert!(slow.work_seconds > 1.5 * fast.work_seconds, "{last:?}");
    assert!(slow.waited > 0.5 * (slow.work_seconds - fast.work_seconds), "{last:?}");
}
