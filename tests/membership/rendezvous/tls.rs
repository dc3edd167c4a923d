//! What travels between a member and the service cannot be read or altered on its way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use kiln_membership::rendezvous::wire::Purpose;
use kiln_membership::rendezvous::{Secret, Terms, query};

use super::{PATIENCE, SECRET, gather, introduction, join_at, service, terms};

/// Passes bytes on to `to` and back, and keeps them all; `harm` may change those of the service.
fn relay(to: SocketAddr, harm: fn(&mut [u8], usize)) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, tape) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let shared = tape.clone();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(to).unwrap();
            let ways = [(near.try_clone().unwrap(), far.try_clone().unwrap(), false), (far, near, true)];
            for (mut from, mut to, is_back) in ways {
                let tape = shared.clone();
                thread::spawn(move || {
                    let (mut buffer, mut before) = ([0; 4096], 0);
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        tape.lock().unwrap().extend_from_slice(&buffer[..count]);
                        if is_back {
                            harm(&mut buffer[..count], before);
                        }
                        before += count;
                        if to.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (address, tape)
}

#[test]
fn what_members_say_is_secret() {
    let is_readable = |secret: Secret| {
        let terms = Terms { secret, ..terms(1) };
        let service = service(&terms);
        let (address, tape) = relay(service.address(), |_, _| ());
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
    let answer = |harm| query(&relay(service.address(), harm).0.to_string(), &terms, &Purpose::Look);
    assert_eq!(answer(|_, _| ()).unwrap(), None, "nobody came yet");
    assert!(answer(|bytes, _| bytes.iter_mut().skip(12).for_each(|byte| *byte ^= 1)).is_err());
    // Behind the first flight, in which both sides have proven themselves.
    let behind = |bytes: &mut [u8], before: usize| bytes.iter_mut().filter(|_| before > 0).for_each(|byte| *byte ^= 1);
    assert!(answer(behind).is_err());
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
