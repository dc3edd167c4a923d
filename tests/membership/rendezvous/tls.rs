//! What travels between a member and the service cannot be read or altered on its way.

use std::sync::{Arc, Mutex};

use kiln_membership::rendezvous::wire::Purpose;
use kiln_membership::rendezvous::{Secret, Terms, query};

use super::{PATIENCE, SECRET, gather, introduction, join_at, relay, service, terms};

#[test]
fn what_members_say_is_secret() {
    let is_readable = |secret: Secret| {
        let terms = Terms { secret, ..terms(1) };
        let service = service(&terms);
        let tape = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&tape);
        let address = relay(service.address(), move |_, _, bytes| kept.lock().unwrap().extend_from_slice(bytes));
        let member = join_at(&address.to_string(), &terms, introduction(0), PATIENCE).unwrap();
        member.set("a key", b"a value that nobody else may read").unwrap();
        let tape = tape.lock().unwrap();
        ["job-1", "host0", "nobody else"].map(|word| tape.windows(word.len()).any(|part| part == word.as_bytes()))
    };
    assert_eq!(is_readable(SECRET.clone()), [false; 3]);
    assert_eq!(is_readable(Secret::none()), [true; 3]);
}

#[test]
fn an_answer_that_was_altered_is_not_believed() {
    let terms = terms(0);
    let service = service(&terms);
    let answer = |is_harmed: fn(usize, usize) -> bool| {
        let address = relay(service.address(), move |is_back, before, bytes| {
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte ^= u8::from(is_back && is_harmed(before, at)));
        });
        query(&address.to_string(), &terms, &Purpose::Look)
    };
    assert_eq!(answer(|_, _| false).unwrap(), None, "nobody came yet");
    assert!(answer(|_, at| at >= 12).is_err());
    // Behind the first flight, in which both sides have proven themselves.
    assert!(answer(|before, _| before > 0).is_err());
}

/// Processes of two builds of this version must make the same one.
#[test]
fn the_certificate_of_a_secret_is_the_same_in_every_process() {
    let terms = || Terms { secret: Secret::from_text("known to two processes: 1789").unwrap(), ..terms(2) };
    let service = service(&terms());
    let members = gather(&service, &terms());
    members[0].set("key", b"value").unwrap();
    assert_eq!(members[1].get(&["key".into()], PATIENCE).unwrap(), [b"value"]);
}
