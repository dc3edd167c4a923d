//! Whoever is lost is named, to everybody, in the same words.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kiln_membership::rendezvous::{Client, Service, Terms};

use super::{PATIENCE, gather, introduction, join, join_at, service, terms, verdict};

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
fn a_member_that_fails_is_named_with_its_reason() {
    let (_service, members) = at_work();
    members[2].leave(Some("the loss is not\nfinite"));
    let expected = "rank 2 (host host2, process 102) failed at step 12, gradient all-reduce: the loss is not finite";
    assert_eq!(verdict(&members[0]).0, expected);
    assert_eq!(verdict(&members[1]).0, expected);
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

/// Passes bytes on in both directions until it is told to freeze; then it holds them back, as a cut network does.
fn proxy(to: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, frozen) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
    let freeze = Arc::clone(&frozen);
    thread::spawn(move || {
        let (near, far) = (listener.accept().unwrap().0, TcpStream::connect(to).unwrap());
        let other = (far.try_clone().unwrap(), near.try_clone().unwrap(), Arc::clone(&freeze));
        thread::spawn(move || pump(other.0, other.1, &other.2));
        pump(near, far, &freeze);
    });
    (address, frozen)
}

fn pump(mut from: TcpStream, mut to: TcpStream, frozen: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if frozen.load(Ordering::Acquire) {
            // Neither passed on nor closed: both ends see silence until the test is over.
            thread::park();
        }
        let _ = to.write_all(&buffer[..count]);
    }
}

#[test]
fn a_silent_member_is_named_and_decides_for_itself() {
    let terms = Terms { timeout: Duration::from_secs(1), beat: Duration::from_millis(50), ..terms(2) };
    let service = service(&terms);
    let (address, frozen) = proxy(service.address());
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
fn a_service_that_ends_after_the_job_ends_at_once() {
    let (service, members) = at_work();
    members[0].leave(Some("out of memory"));
    let start = Instant::now();
    drop(service);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    // The verdict reached everybody before the end did.
    assert!(members.iter().skip(1).all(|member| verdict(member).0.contains("out of memory")));
}
