//! How processes connect over Gloo while others come to their ports.

use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kiln::parallel::collective::{Key, Operation};
use kiln::parallel::engine::{Engine, Symptom};
use kiln::parallel::gloo::{Gloo, Interface, KeyStore};

use crate::engines::Store;

const LIMIT: Duration = Duration::from_secs(20);
const KEY: Key = Key { step: 0, micro_batch: 0, operation: Operation::Tally };

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
        let mut value = value.to_vec();
        // Addresses are published under the rank.
        if key.rsplit('/').next().is_some_and(|rank| rank.parse::<usize>().is_ok()) && value.len() >= ADDRESS {
            value.chunks_mut(ADDRESS).for_each(&self.tap);
        }
        self.store.set(key, &value)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>, String> {
        self.store.get(key)
    }
}

/// How `size` processes fare that connect through a tapped store.
fn connect_tapped(
    size: usize,
    limit: Duration,
    tap: impl Fn(&mut [u8]) + Clone + Send + 'static,
) -> Vec<Result<Gloo, Symptom>> {
    let (interface, store) = (Interface::At("127.0.0.1".into()), Store::default());
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
    let gather = |engine: &Gloo| engine.all_gather(KEY, &[engine.rank() as u8], &[1; 3], LIMIT).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = engines.iter().map(|engine| scope.spawn(move || gather(engine))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == [0, 1, 2]));
    });
}

#[test]
fn an_address_that_nobody_listens_on_is_shown_with_its_port() {
    let closed = |address: &mut [u8]| address[2..4].copy_from_slice(&256_u16.to_be_bytes());
    for outcome in connect_tapped(2, Duration::from_secs(1), closed) {
        let symptom = outcome.unwrap_err().0;
        assert!(symptom.contains("[127.0.0.1]:256: Connection refused"), "{symptom}");
    }
}
