//! Whoever is lost is named, to everybody, in the same words.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kiln_membership::rendezvous::{Client, Service, Terms};

use super::{PATIENCE, gather, introduction, join, join_at, relay, service, terms, verdict};

/// Three members in the midst of a step.
fn at_work() -> (Service, Vec<Client>) {
    let terms = terms(3);
    let service = service(&terms);
    let members = gather(&service, &terms);
    members.iter().for_each(|member| member.doing("step 12, gradient all-reduce"));
    (service, members)
}

#[test]
fn a_member_that_dies_is_named_to_all() {
    let (_service, mut members) = at_work();
    drop(members.remove(1));
    let verdicts: Vec<_> = members.iter().map(verdict).collect();
    assert_eq!(verdicts[0], verdicts[1]);
    let text = &verdicts[0].0;
    assert!(text.starts_with("rank 1 (host host1, process 101) was lost at "), "{text}");
    assert!(text.contains(": its connection closed"), "{text}");
    for member in &members {
        assert_eq!(member.set("late", b"").unwrap_err(), verdicts[0]);
        assert_eq!(member.get(&["late".into()], PATIENCE).unwrap_err(), verdicts[0]);
        assert_eq!(member.trouble("read error"), verdicts[0]);
    }
}

#[test]
fn a_waiting_call_ends_with_the_verdict() {
    let (_service, members) = at_work();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            members[0].set("waiting", b"soon").unwrap();
            members[0].get(&["never".into()], PATIENCE)
        });
        members[0].get(&["waiting".into()], PATIENCE).unwrap();
        // Requests of one member are served in their order, so by the last of these the other one waits.
        (0..20).for_each(|key| members[0].set(&format!("{key}"), b"").unwrap());
        members[2].leave(Some("out of memory"));
        assert!(waiting.join().unwrap().unwrap_err().0.contains("out of memory"));
    });
}

#[test]
fn trouble_names_the_member_that_did_not_come() {
    let (_service, members) = at_work();
    members[0].doing("step 13, gradient all-reduce");
    members[1].doing("step 13, gradient all-reduce");
    let text = members[1].trouble("timed out").0;
    assert!(
        text.starts_with("rank 2 (host host2, process 102) did not come to step 13, gradient all-reduce"),
        "{text}"
    );
    assert_eq!(verdict(&members[2]).0, text);
}

#[test]
fn a_silent_member_is_named_and_decides_for_itself() {
    let terms = Terms { timeout: Duration::from_secs(1), beat: Duration::from_millis(50), ..terms(2) };
    let service = service(&terms);
    let frozen = Arc::new(AtomicBool::new(false));
    let freezes = Arc::clone(&frozen);
    let address = relay(service.address(), move |_, _, _| {
        // Neither passed on nor closed: both ends see silence until the test is over, as in a cut network.
        while freezes.load(Ordering::Acquire) {
            thread::park();
        }
    });
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| join(&service, &terms, 0));
        let second = join_at(&address.to_string(), &terms, introduction(1), PATIENCE).unwrap();
        (first.join().unwrap().unwrap(), second)
    });
    let start = Instant::now();
    frozen.store(true, Ordering::Release);
    let text = verdict(&first).0;
    assert!(text.starts_with("rank 1 (host host1, process 101) was lost at the start: no sign of life for"), "{text}");
    assert!(start.elapsed() >= terms.timeout - terms.beat * 2, "{:?}", start.elapsed());
    let text = verdict(&second).0;
    assert!(
        text.starts_with(&format!("rank 0 (the rendezvous at {address}) was lost at the start: no sign")),
        "{text}"
    );
}

#[test]
fn a_lost_service_is_named_by_every_member() {
    let (service, members) = at_work();
    let address = service.address();
    drop(service);
    let expected =
        format!("rank 0 (the rendezvous at {address}) was lost at step 12, gradient all-reduce: its connection");
    for member in &members {
        let text = verdict(member).0;
        assert!(text.starts_with(&expected), "{text}");
        assert_eq!(member.trouble("read error").0, text);
    }
}

#[test]
fn a_service_that_ends_after_the_job_has_told_all_the_verdict() {
    let (service, members) = at_work();
    members[0].leave(Some("out of memory"));
    drop(service);
    assert!(members.iter().skip(1).all(|member| verdict(member).0.contains("out of memory")));
}
