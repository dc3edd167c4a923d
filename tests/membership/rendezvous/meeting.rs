//! What a job that goes well needs.

use std::thread;
use std::time::Duration;

use kiln_membership::rendezvous::store::{MOST_BYTES, Store};
use kiln_membership::rendezvous::{MOST_MEMBERS, Secret};

use super::{PATIENCE, gather, introduction, met, service, terms};

#[test]
fn three_members_meet_and_know_each_other() {
    let terms = terms(3);
    let service = service(&terms);
    for member in gather(&service, &terms) {
        assert_eq!(met(&member), [introduction(0), introduction(1), introduction(2)]);
    }
}

#[test]
fn a_job_without_a_secret_meets_the_same_way() {
    let mut terms = terms(2);
    terms.secret = Secret::none();
    let service = service(&terms);
    assert_eq!(gather(&service, &terms).len(), 2);
}

#[test]
fn a_value_is_waited_for_and_seen_by_all() {
    let terms = terms(3);
    let service = service(&terms);
    let members = gather(&service, &terms);
    let keys = ["b".to_string(), "a".to_string()];
    thread::scope(|scope| {
        let waiting: Vec<_> = members.iter().map(|member| scope.spawn(|| member.get(&keys, PATIENCE))).collect();
        members[1].set("a", b"1").unwrap();
        members[2].set("b", b"2").unwrap();
        for values in waiting {
            assert_eq!(values.join().unwrap().unwrap(), [b"2", b"1"]);
        }
    });
}

#[test]
fn the_first_write_of_a_key_stays() {
    let terms = terms(2);
    let service = service(&terms);
    let members = gather(&service, &terms);
    members[0].set("key", b"first").unwrap();
    members[1].set("key", b"first").unwrap();
    assert_eq!(members[1].set("key", b"second").unwrap_err().0, "key 'key' has another value already");
    assert_eq!(members[1].get(&["key".into()], PATIENCE).unwrap(), [b"first"]);
}

#[test]
fn a_key_that_nobody_sets_is_named_after_the_limit() {
    let terms = terms(1);
    let service = service(&terms);
    let member = gather(&service, &terms).remove(0);
    let error = member.get(&["lost".into()], Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.0, "no process set 'lost' within 20 ms");
}

#[test]
fn the_store_takes_a_message_of_almost_1_mib_and_128_mib_in_all() {
    let terms = terms(1);
    let service = service(&terms);
    let member = gather(&service, &terms).remove(0);
    let large = vec![7; (1 << 20) - 2048];
    (0..128).for_each(|key| member.set(&format!("{key:04}"), &large).unwrap());
    let keys: Vec<_> = (0..64).map(|key| format!("{key:04}")).collect();
    assert!(member.get(&keys, PATIENCE).unwrap().iter().all(|value| *value == large));
    assert!(member.set("more", &large).unwrap_err().0.contains("full"));
    assert!(member.set("too much", &vec![0; 1 << 20]).unwrap_err().0.contains("at most"));
    member.set("small", b"still works").unwrap();
}

/// What Gloo's members publish in two attempts to connect, the second after a failure, and room for other keys.
#[test]
fn the_store_has_room_for_as_many_members_as_a_job_may_have() {
    let store = Store::default();
    for attempt in 0..2 {
        for member in 0..MOST_MEMBERS {
            store.set(format!("{attempt}/token/{member}"), vec![1; 64]).unwrap();
            store.set(format!("{attempt}/{member}"), vec![2; 8192]).unwrap();
            store.set(format!("{attempt}/outcome/{member}"), vec![3; 200]).unwrap();
        }
    }
    (0..10 * MOST_MEMBERS).for_each(|key| store.set(format!("other/{key}"), vec![0; 64]).unwrap());
    assert!(store.set("more".into(), vec![0; MOST_BYTES]).unwrap_err().contains("full"));
}

#[test]
fn whoever_has_finished_may_leave_while_others_work() {
    let terms = terms(3);
    let service = service(&terms);
    let mut members = gather(&service, &terms);
    let first = members.remove(0);
    first.leave(None);
    assert_eq!(first.set("late", b"").unwrap_err().0, "this process has left the job");
    drop(first);
    members[0].set("still", b"here").unwrap();
    assert_eq!(members[1].get(&["still".into()], PATIENCE).unwrap(), [b"here"]);
    members.iter().for_each(|member| member.leave(None));
}
