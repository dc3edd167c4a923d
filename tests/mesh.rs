//! How processes connect over Gloo while others come to their ports.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use kiln_engine::parallel::engine::{Engine, Symptom};
use kiln_engine::parallel::gloo::{Gloo, Interface, KeyStore};
use kiln_engine::parallel::{Key, Operation};

use crate::engines::Store;
use crate::skipped::skip;

const LIMIT: Duration = Duration::from_secs(20);
const KEY: Key = Key { step: 0, micro_batch: 0, operation: Operation::Counts };

/// The bytes of one address, as Gloo publishes one for each peer; the port is at the third, the greater byte first.
const ADDRESS: usize = 136;

/// A store that shows each address that is published to somebody, who may change it, before anybody else sees it.
#[derive(Clone)]
struct Tapped<F> {
    store: Store,
    tap: F,
}

impl<F: Fn(&mut [u8]) + Send> KeyStore for Tapped<F> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        // What Gloo publishes is compressed: the name of its host and, as the longer one, addresses.
        let mut addresses = Vec::new();
        let is_gloos = ZlibDecoder::new(value).read_to_end(&mut addresses).is_ok();
        if !is_gloos || addresses.len() < ADDRESS {
            return self.store.set(key, value);
        }
        addresses.chunks_mut(ADDRESS).for_each(&self.tap);
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
        packed.write_all(&addresses).unwrap();
        self.store.set(key, &packed.finish().unwrap())
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Vec<u8>>, String> {
        self.store.get(keys)
    }
}

/// How `size` processes fare that connect through a tapped store.
fn connect_tapped(
    size: usize,
    limit: Duration,
    tap: impl Fn(&mut [u8]) + Clone + Send + 'static,
) -> Vec<Result<Gloo, Symptom>> {
    connect_at("127.0.0.1", size, limit, tap)
}

/// The same on the interface with the address `host`.
fn connect_at(
    host: &str,
    size: usize,
    limit: Duration,
    tap: impl Fn(&mut [u8]) + Clone + Send + 'static,
) -> Vec<Result<Gloo, Symptom>> {
    let (interface, store) = (Interface::At(host.into()), Store::default());
    std::thread::scope(|scope| {
        let connect = |rank| {
            let (interface, keys) = (&interface, Tapped { store: store.clone(), tap: tap.clone() });
            scope.spawn(move || Gloo::connect(rank, size, interface, Box::new(keys), limit))
        };
        let threads: Vec<_> = (0..size).map(connect).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn processes_connect_though_a_stranger_comes_to_every_port_before_them() {
    // Three processes publish two addresses each; the stranger comes to all of the first attempt, and says nothing.
    let strangers = Arc::new(Mutex::new(Vec::new()));
    let knock = move |address: &mut [u8]| {
        let mut strangers = strangers.lock().unwrap();
        if strangers.len() < 6 {
            let port = u16::from_be_bytes([address[2], address[3]]);
            strangers.push(TcpStream::connect(("127.0.0.1", port)).unwrap());
        }
    };
    let engines: Vec<_> =
        connect_tapped(3, Duration::from_millis(500), knock).into_iter().map(Result::unwrap).collect();
    let gather = |engine: &Gloo| {
        let mut all = [9; 3];
        engine.all_gather(KEY, &[engine.rank() as u8], &[1; 3], &mut all, LIMIT).unwrap();
        all
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = engines.iter().map(|engine| scope.spawn(move || gather(engine))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == [0, 1, 2]));
    });
}

/// Comes from `host` to a port of this machine; whether it answers in time.
fn answers_a_stranger(host: [u8; 4], port: u16) -> bool {
    let connect = async {
        let stranger = tokio::net::TcpSocket::new_v4().unwrap();
        stranger.bind((host, 0).into()).unwrap();
        let answer = stranger.connect(([127, 0, 0, 1], port).into());
        tokio::time::timeout(Duration::from_millis(300), answer).await.is_ok_and(|answer| answer.is_ok())
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(connect)
}

#[test]
fn a_port_answers_the_members_hosts_alone() {
    // The stranger comes to every port of every attempt, before the members do. Its host is none of theirs.
    let answers = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&answers);
    let knock = move |address: &mut [u8]| {
        let port = u16::from_be_bytes([address[2], address[3]]);
        heard.lock().unwrap().push(answers_a_stranger([127, 9, 9, 9], port));
    };
    connect_tapped(3, Duration::from_secs(2), knock).into_iter().for_each(|engine| drop(engine.unwrap()));
    assert_eq!(*answers.lock().unwrap(), [false; 6]);
}

#[test]
fn members_hear_each_other_over_ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip("this machine has no IPv6");
    }
    let addresses = Arc::new(Mutex::new(0));
    let published = Arc::clone(&addresses);
    let count = move |_: &mut [u8]| *published.lock().unwrap() += 1;
    connect_at("::1", 2, Duration::from_secs(2), count).into_iter().for_each(|engine| drop(engine.unwrap()));
    assert_eq!(*addresses.lock().unwrap(), 2, "they meet in the first attempt");
}

/// Set for the process in which others forge what Gloo reads.
const FORGED: &str = "KILN_TEST_FORGED";

/// The operations that a header can ask Gloo for, and some that there are not.
const OPERATIONS: std::ops::Range<u64> = 0..6;

/// A header of Gloo with numbers that fit nothing.
fn forged(operation: u64) -> Vec<u8> {
    let (bytes, slot, offset, length) = (48_u64, 0xdead_u64, 0_u64, u64::MAX / 2);
    [bytes, operation, slot, offset, length, length].iter().flat_map(|field| field.to_ne_bytes()).collect()
}

#[test]
#[ignore = "not a test: the process that a stranger comes to"]
fn the_process_that_strangers_come_to() {
    let Some(operation) = std::env::var(FORGED).ok().and_then(|text| text.parse().ok()) else { return };
    let strangers = Arc::new(Mutex::new(Vec::new()));
    let forge = move |address: &mut [u8]| {
        let mut strangers = strangers.lock().unwrap();
        if strangers.len() < 2 {
            let port = u16::from_be_bytes([address[2], address[3]]);
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stranger.write_all(&forged(operation)).unwrap();
            strangers.push(stranger);
        }
    };
    connect_tapped(2, Duration::from_millis(500), forge).into_iter().for_each(|engine| drop(engine.unwrap()));
}

#[test]
fn a_forged_header_ends_no_process() {
    let name = concat!(module_path!(), "::the_process_that_strangers_come_to").split_once("::").unwrap().1;
    let start = |operation: u64| {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args([name, "--exact", "--ignored", "--nocapture"]).env(FORGED, operation.to_string());
        process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let processes: Vec<_> = OPERATIONS.map(start).collect();
    for (operation, process) in OPERATIONS.zip(processes) {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "operation {operation}: {output:?}");
    }
}

#[test]
fn an_address_that_nobody_listens_on_is_shown_with_its_port() {
    let closed = |address: &mut [u8]| address[2..4].copy_from_slice(&256_u16.to_be_bytes());
    for outcome in connect_tapped(2, Duration::from_secs(1), closed) {
        let symptom = outcome.err().unwrap().0;
        assert!(symptom.contains("[127.0.0.1]:256: Connection refused"), "{symptom}");
    }
}
