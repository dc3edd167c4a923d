//! Who may not join learns why; the job does not notice.

use std::thread;
use std::time::{Duration, Instant};

use kiln_membership::rendezvous::greeting::{self, greet};
use kiln_membership::rendezvous::membership::ProcessInfo;
use kiln_membership::rendezvous::wire::{Envelope, Greeting, Hello, PROTOCOL};
use kiln_membership::rendezvous::{Client, Secret, Service, Terms};
use kiln_system::Error;
use prost::Message;

use super::{PATIENCE, gather, introduction, join, join_at, met, refused_in_the_end, service, terms};

/// Between two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// What a newcomer with `newcomers` terms is told by a service that waits for `terms(3)`, two of whom are there.
fn told(newcomers: &Terms, me: ProcessInfo, patience: Duration) -> Error {
    let terms = terms(3);
    let (service, terms) = (&service(&terms), &terms);
    thread::scope(|scope| {
        let waiting = [0, 2].map(|rank| scope.spawn(move || join_once_free(service, terms, rank)));
        [0, 2].iter().for_each(|rank| await_seat(service, terms, *rank));
        let error = join_at(&service.address().to_string(), newcomers, me, patience).err().unwrap();
        // All stay until all are in: a member that goes is lost to those who have not heard of the beginning yet.
        let last = join(service, terms, 1).unwrap();
        assert_eq!(met(&last)[1], introduction(1));
        let others = waiting.map(|member| member.join().unwrap());
        drop((last, others));
        error
    })
}

/// Joins, even if `await_seat` was there first.
fn join_once_free(service: &Service, terms: &Terms, rank: usize) -> Client {
    loop {
        match join(service, terms, rank) {
            Err(Error::PeerLost(why)) if why.contains("is already here") => {}
            joined => return joined.unwrap(),
        }
    }
}

/// Returns once `rank` sits: whoever claims its seat is told so.
fn await_seat(service: &Service, terms: &Terms, rank: usize) {
    let scout = ProcessInfo { process: 999, ..introduction(rank) };
    let taken = format!("(host host{rank}, process {}) is already here", 100 + rank);
    loop {
        let patience = Duration::from_millis(20);
        match join_at(&service.address().to_string(), terms, scout.clone(), patience) {
            Err(error) if error.to_string().contains(&taken) => return,
            Err(Error::PeerLost(_)) => {}
            other => panic!("{:?}", other.err()),
        }
    }
}

fn usage(newcomers: &Terms, me: ProcessInfo) -> String {
    let error = told(newcomers, me, PATIENCE);
    assert!(matches!(error, Error::Usage(_)), "{error:?}");
    error.to_string()
}

#[test]
fn another_job_is_refused() {
    let text = usage(&Terms { job_id: "job-2".into(), ..terms(3) }, introduction(1));
    assert!(text.contains("a job other than 'job-2'") && !text.contains("job-1"), "{text}");
}

#[test]
fn who_has_a_wrong_secret_or_none_is_told_so_after_its_patience() {
    let words = ["did not prove that it knows the job's secret", "requires encryption"];
    for (secret, words) in [Secret::random(), Secret::none()].into_iter().zip(words) {
        let newcomers = Terms { secret, ..terms(3) };
        let text = refused_in_the_end(|patience| {
            let start = Instant::now();
            let error = told(&newcomers, introduction(1), patience);
            assert!(start.elapsed() >= patience - RETRY, "it may be a stranger that answers");
            error
        });
        assert!(text.contains("did not join its job within "), "{text}");
        assert!(text.contains(words), "{text}");
        assert!(text.contains("127.0.0.1:") && text.contains("--job-secret-file"), "{text}");
    }
}

#[test]
fn a_rank_out_of_range_is_refused() {
    let text = usage(&terms(3), introduction(3));
    assert!(text.contains("rank '3' is out of range; --rank takes 0 to 2"), "{text}");
}

#[test]
fn another_size_is_refused() {
    let text = usage(&terms(4), introduction(1));
    assert!(text.contains("expects '4' processes in the job, the rendezvous 3"), "{text}");
}

#[test]
fn a_member_that_comes_after_the_beginning_is_refused() {
    let terms = terms(2);
    let service = service(&terms);
    let members = gather(&service, &terms);
    let error = join(&service, &terms, 1).err().unwrap();
    assert!(matches!(&error, Error::PeerLost(why) if why.contains("has already begun with all of its 2")), "{error}");
    members[0].set("unharmed", b"").unwrap();
}

#[test]
fn those_who_did_not_come_are_named() {
    let terms = terms(4);
    let service = service(&terms);
    let address = service.address().to_string();
    let error = join_at(&address, &terms, introduction(1), Duration::from_millis(300)).err().unwrap();
    assert!(matches!(&error, Error::PeerLost(why) if why.contains("ranks 0, 2-3 did not come")), "{error}");
}

#[test]
fn a_service_that_does_not_exist_is_waited_for_and_then_named() {
    let error = join_at("127.0.0.1:1", &terms(2), introduction(1), Duration::from_millis(250)).err().unwrap();
    assert!(matches!(&error, Error::PeerLost(why) if why.contains("'127.0.0.1:1' within 250 ms")), "{error}");
}

#[test]
fn an_address_that_is_none_is_a_usage_error() {
    for address in ["", "host", ":1", "host:", "host:99999", "a b:1"] {
        let error = join_at(address, &terms(2), introduction(1), PATIENCE).err().unwrap();
        assert!(matches!(error, Error::Usage(_)), "{address}: {error}");
    }
}

fn hello(change: impl FnOnce(&mut Hello)) -> Envelope {
    let envelope = greeting::hello(&terms(3));
    let mut greeting = Greeting::decode(envelope.body.as_slice()).unwrap();
    change(greeting.hello.as_mut().expect("the first message is a hello"));
    Envelope { body: greeting.encode_to_vec() }
}

#[test]
fn another_version_is_refused() {
    let refused = |change: fn(&mut Hello)| greet(&terms(3), &hello(change)).unwrap_err().reason;
    let old = refused(|it| it.version = "0.0.9".into());
    assert!(old.contains("kiln '0.0.9'") && old.contains("same build"), "{old}");
    let new = refused(|it| it.protocol += 1);
    assert!(new.contains(&format!("protocol {}", PROTOCOL + 1)), "{new}");
    assert!(greet(&terms(3), &hello(|_| {})).is_ok());
}

/// Its other messages are of another format, but a hello has had this one ever since.
#[test]
fn the_hello_of_an_earlier_version_is_understood() {
    let body = [&[0x0a, 0x10, 8, 4, 0x12, 5][..], b"0.0.9", &[0x1a, 5], b"job-1"].concat();
    let refusal = greet(&terms(3), &Envelope { body }).unwrap_err();
    assert!(refusal.other_job && refusal.reason.contains("kiln '0.0.9' (protocol 4)"), "{}", refusal.reason);
}

#[test]
fn a_refusal_survives_the_way() {
    let refusal = greet(&terms(3), &hello(|it| it.job_id = "job-2".into())).unwrap_err();
    assert_eq!(greeting::refusal(&greeting::answer(Some(refusal.clone()))), Some(refusal));
    assert_eq!(greeting::refusal(&greeting::answer(None)), None);
}
