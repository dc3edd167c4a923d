//! A client's lease: nobody changes the state of a run unless the service still counts on him.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};

use kiln_membership::Next;
use kiln_membership::rendezvous::membership::{MembershipView, StateVersion};

use super::*;

/// The lease is two thirds of it.
const LOST_AFTER: Duration = Duration::from_millis(600);

fn elastic_terms() -> Terms {
    Terms { timeout: LOST_AFTER, beat: Duration::from_millis(50), ..terms(0) }
}

fn process_info(process: u32) -> ProcessInfo {
    let configuration = [
        ("parallel.elastic", "1:4"),
        ("parallel.world_size", "4"),
        ("parallel.stages", "1"),
        ("parallel.heartbeat", "0.05"),
        ("parallel.lost_after", "0.6"),
        ("parallel.elastic_timeout", "20"),
        ("parallel.timeout", "30"),
    ];
    let configuration = configuration.map(|(key, value)| (key.into(), value.into())).into();
    ProcessInfo { host: "node".into(), process, devices: 1, configuration, ..ProcessInfo::default() }
}

/// A process that comes whenever `may_come`, and its first generation.
fn take_part(service: &Service, process: u32, may_come: &Arc<AtomicBool>) -> (Arc<Client>, MembershipView) {
    let may_come = may_come.clone();
    let before = Box::new(move || {
        while !may_come.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    });
    let address = service.address().to_string();
    let participant = Client::join(&address, &elastic_terms(), process_info(process), PATIENCE, before).unwrap();
    let next = participant.next(StateVersion::default(), 1, None, &mut || Ok(())).unwrap();
    let Next::Begin(view) = next else { panic!("no part in a generation: {next:?}") };
    (Arc::new(participant), view)
}

/// The answer of a participant, as soon as there is one.
fn confirmation(participant: &Arc<Client>) -> std::sync::mpsc::Receiver<std::result::Result<(), Verdict>> {
    let (sender, receiver) = channel();
    let participant = participant.clone();
    thread::spawn(move || sender.send(participant.confirm()));
    receiver
}

#[test]
fn a_process_that_comes_back_waits_to_hear_whether_its_generation_goes_on() {
    let open = Arc::new(AtomicBool::new(true));
    let first = service(&elastic_terms());
    let address = first.address();
    let (cut_off, view) = take_part(&first, 1, &open);
    assert_eq!(view.generation, 1);
    assert_eq!(cut_off.confirm(), Ok(()));
    open.store(false, Ordering::SeqCst);
    drop(first);
    thread::sleep(LOST_AFTER);
    let answer = confirmation(&cut_off);
    assert_eq!(answer.recv_timeout(LOST_AFTER), Err(RecvTimeoutError::Timeout), "the lease is over");
    // Meanwhile another process computes with another service.
    let second = Service::start(TcpListener::bind(address).unwrap(), elastic_terms()).unwrap();
    let (other, _) = take_part(&second, 2, &Arc::new(AtomicBool::new(true)));
    assert_eq!(other.confirm(), Ok(()));
    open.store(true, Ordering::SeqCst);
    let answer = answer.recv_timeout(PATIENCE).unwrap();
    assert!(answer.is_err(), "its generation is over, and it went on");
}

#[test]
fn a_process_goes_on_with_a_service_that_was_restarted() {
    let open = Arc::new(AtomicBool::new(true));
    let first = service(&elastic_terms());
    let address = first.address();
    let (member, _) = take_part(&first, 1, &open);
    drop(first);
    thread::sleep(LOST_AFTER);
    let answer = confirmation(&member);
    let second = Service::start(TcpListener::bind(address).unwrap(), elastic_terms()).unwrap();
    assert_eq!(answer.recv_timeout(PATIENCE).unwrap(), Ok(()));
    assert_eq!(second.view().unwrap().generation, 1);
}

#[test]
fn a_process_without_a_part_says_what_it_waits_for() {
    let service = service(&elastic_terms());
    let mut alone = process_info(1);
    alone.configuration.insert("parallel.elastic".into(), "2:4".into());
    let address = service.address().to_string();
    let alone = Client::join(&address, &elastic_terms(), alone, PATIENCE, Box::new(|| ())).unwrap();
    assert_eq!(alone.awaited(), "1 member is here, --elastic asks for at least 2");
}
