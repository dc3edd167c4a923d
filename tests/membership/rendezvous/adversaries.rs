//! Strangers at the port: whatever they send, the job begins, goes on, and they learn nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kiln_membership::rendezvous::{Client, Service};

use super::{PATIENCE, gather, introduction, join, join_at, met, relay, service, terms};

const FLOOD: usize = 1000;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn connect(service: &Service) -> TcpStream {
    let stream = TcpStream::connect(service.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// As many connections as the system allows, up to a thousand.
fn flood(address: SocketAddr) -> Vec<TcpStream> {
    (0..FLOOD).map_while(|_| TcpStream::connect(address).ok()).collect()
}

/// Everything until the other side closes; it must.
fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    bytes
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A call of the method over plain HTTP/2, whose first message claims to have 1 GB.
fn giant() -> Vec<u8> {
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/kiln.Rendezvous/Session"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    // Each header as a literal without indexing (RFC 7541, 6.2.2).
    let literal = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let block: Vec<u8> =
        headers.iter().flat_map(|(name, value)| [vec![0], literal(name), literal(value)].concat()).collect();
    let message = [&[0_u8][..], &1_000_000_000_u32.to_be_bytes(), b"not as long"].concat();
    [PREFACE.to_vec(), frame(4, 0, 0, &[]), frame(1, 4, 1, &block), frame(0, 0, 1, &message)].concat()
}

fn works(members: &[Client], key: &str) {
    members[0].set(key, b"unharmed").unwrap();
    assert_eq!(members[1].get(&[key.into()], PATIENCE).unwrap(), [b"unharmed"]);
}

#[test]
fn a_job_goes_on_while_strangers_knock() {
    let terms = terms(2);
    let service = service(&terms);
    let members = gather(&service, &terms);
    let mut get = connect(&service);
    get.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut garbage = connect(&service);
    garbage.write_all(&[0xff; 4096]).unwrap();
    let mut half = connect(&service);
    half.write_all(&PREFACE[..7]).unwrap();
    let mut giant_one = connect(&service);
    giant_one.write_all(&giant()).unwrap();
    works(&members, "before the flood");
    let idle = flood(service.address());
    works(&members, "during the flood");
    for stream in [&mut get, &mut garbage, &mut half, &mut giant_one] {
        let text = String::from_utf8_lossy(&answer(stream)).into_owned();
        assert!(!text.contains("job-1") && !text.contains("host0"), "{text}");
    }
    works(&members, "after the flood");
    drop(idle);
    works(&members, "in the end");
    members.iter().for_each(|member| member.leave(None));
}

#[test]
fn one_byte_at_a_time_is_not_waited_for() {
    let service = service(&terms(2));
    let mut slow = connect(&service);
    slow.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    // Proper so far: a settings frame of 16,380 bytes, which would take a quarter of an hour.
    let mut bytes = PREFACE.iter().chain(&[0, 0x3f, 0xfc, 4]).chain(std::iter::repeat_n(&0, 600));
    // The short wait for an answer is what makes it slow.
    let mut is_closed = |byte| slow.write_all(&[byte]).is_err() || matches!(slow.read(&mut [0; 64]), Ok(0));
    assert!(bytes.any(|byte| is_closed(*byte)), "half a minute later it is still waited for");
}

#[test]
fn a_replayed_session_is_refused_and_takes_no_seat() {
    let terms = terms(1);
    let original = service(&terms);
    let tape = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&tape);
    let address = relay(original.address(), move |is_back, _, bytes| {
        if !is_back {
            kept.lock().unwrap().extend_from_slice(bytes);
        }
    });
    let member = join_at(&address.to_string(), &terms, introduction(0), PATIENCE).unwrap();
    member.leave(None);
    let tape = tape.lock().unwrap().clone();
    let another = service(&terms);
    let mut replay = connect(&another);
    replay.write_all(&tape).unwrap();
    answer(&mut replay);
    assert_eq!(met(&join(&another, &terms, 0).unwrap()), [introduction(0)]);
}
