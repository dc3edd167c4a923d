//! Gloo, PyTorch's engine for collectives over TCP, between the processes of a run.
//!
//! `shim.cc` exposes Gloo's own operations to Rust. Processes find each other through a [`KeyStore`] that the caller
//! provides. Gloo's errors do not name the process at fault (the first one to give up closes its connections, and the
//! others report it), so they are symptoms; the rendezvous decides which process failed.
//!
//! Gloo listens on a port for each peer and accepts any connection as that peer. So the port accepts only addresses of
//! that peer's host (`sockets.cc`), and every process sends each peer a token that only readers of the store know: if a
//! foreign process on one of the hosts took the place of a peer, all processes connect again. This detects foreign
//! processes, not attackers who can read or change packets: Gloo neither authenticates nor encrypts. Data from a
//! foreign process makes an attempt to connect fail, not the process.
//!
//! LibTorch contains another version of Gloo under the same names. The build script links this one first, so that both
//! Kiln and Gloo itself use it; LibTorch's is never called.

use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Duration;

use cxx::{SharedPtr, UniquePtr};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

pub use super::engine::KeyStore;
use super::engine::{Engine, Symptom};
use super::key::{Key, Operation};

/// How often processes try to connect with each other.
const ATTEMPTS: usize = 4;
/// How many attempts accept only the hosts of peers; the later ones are for hosts behind address translation.
const GUARDED: usize = 2;
/// The length of a random token, in bytes.
const TOKEN: usize = 16;
/// Most bytes of the addresses that a process publishes; those for two thousand others are a quarter of it.
const MOST_ADDRESSES: u64 = 1 << 20;
/// Most bytes of a message between two processes; a damaged length would take all memory.
const MOST_BYTES: usize = 16 << 30;
/// The length of a host's address, in bytes.
const ADDRESS: usize = 16;
/// How long Gloo waits for a connection, and a process for a token, in multiples of the connection limit.
const PATIENCE: u32 = 5;
/// How long an attempt may take, and the store must wait for slower processes, in multiples of the connection limit.
pub const LONGEST: u32 = 12;

#[cxx::bridge(namespace = "kiln")]
mod ffi {
    extern "Rust" {
        type Keys;
        fn set(&self, key: &CxxString, value: &[u8]) -> Result<()>;
        fn get(&self, key: &CxxString) -> Result<Vec<u8>>;
    }

    unsafe extern "C++" {
        type Device;
        fn open(host: &str, interface: &str) -> Result<SharedPtr<Device>>;
    }

    unsafe extern "C++" {
        include!("kiln-engine/parallel/gloo/sockets.h");
        fn addresses() -> Vec<u8>;
        fn admit(own: &[u8], hosts: &[u8]);
    }

    unsafe extern "C++" {
        include!("kiln-engine/parallel/gloo/shim.h");
        type Mesh;
        fn connect(
            rank: usize,
            size: usize,
            device: &SharedPtr<Device>,
            keys: Box<Keys>,
            limit: u64,
        ) -> Result<UniquePtr<Mesh>>;
        fn all_reduce(&self, values: &mut [f32], tag: u32, limit: u64) -> Result<()>;
        fn all_gather(&self, own: &[u8], lengths: &[usize], all: &mut [u8], tag: u32, limit: u64) -> Result<()>;
        fn all_to_all(
            &self,
            own: &[u8],
            sent: &[usize],
            received: &[usize],
            all: &mut [u8],
            tag: u32,
            limit: u64,
        ) -> Result<()>;
        fn broadcast(&self, values: &mut [u8], root: usize, tag: u32, limit: u64) -> Result<()>;
        fn send(&self, values: &[u8], peer: usize, slot: u64, limit: u64) -> Result<()>;
        fn receive(&self, values: &mut [u8], peer: usize, slot: u64, limit: u64) -> Result<()>;
        fn identify(&self, tokens: &[u8], limit: u64) -> Result<()>;
        fn sending(&self) -> Vec<u64>;
        fn close(&self);
    }
}

// SAFETY: a mesh is a context of Gloo, whose operations lock what they share, and a list that never changes.
unsafe impl Send for ffi::Mesh {}
// SAFETY: as above; operations of different tags may run side by side.
unsafe impl Sync for ffi::Mesh {}

/// The store for the shim, with the keys of one attempt to connect.
struct Keys {
    store: Rc<dyn KeyStore>,
    attempt: usize,
    /// The addresses of each peer's host, in rank order; empty in attempts that accept all hosts.
    hosts: Vec<Vec<u8>>,
}

impl Keys {
    /// Publishes the addresses at which this process listens, one per peer.
    fn set(&self, key: &cxx::CxxString, value: &[u8]) -> Result<(), String> {
        let each = value.len().checked_div(self.hosts.len()).unwrap_or_default().max(1);
        value.chunks(each).zip(&self.hosts).for_each(|(own, hosts)| ffi::admit(own, hosts));
        // The addresses differ in a few bytes of each.
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
        let packed = packed.write_all(value).and_then(|()| packed.finish()).map_err(|error| error.to_string())?;
        self.put(&key.to_string_lossy(), &packed)
    }

    fn get(&self, key: &cxx::CxxString) -> Result<Vec<u8>, String> {
        let key = key.to_string_lossy();
        let packed = self.take(std::iter::once(key.clone().into_owned()))?.pop().unwrap_or_default();
        let mut value = Vec::new();
        let read = ZlibDecoder::new(&packed[..]).take(MOST_ADDRESSES + 1).read_to_end(&mut value);
        read.map_err(|error| format!("'{key}' is damaged: {error}"))?;
        if value.len() as u64 > MOST_ADDRESSES {
            return Err(format!("'{key}' has more than {MOST_ADDRESSES} bytes"));
        }
        Ok(value)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.store.set(&format!("{}/{key}", self.attempt), value)
    }

    fn take(&self, keys: impl Iterator<Item = String>) -> Result<Vec<Vec<u8>>, String> {
        let keys: Vec<String> = keys.map(|key| format!("{}/{key}", self.attempt)).collect();
        self.store.get(&keys)
    }

    /// Publishes the `own` value of `name`; returns the values of all processes in rank order.
    fn exchange(&self, name: &str, rank: usize, size: usize, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        self.put(&format!("{name}/{rank}"), own)?;
        self.take((0..size).map(|rank| format!("{name}/{rank}")))
    }
}

/// The network interface for connections with other processes.
#[derive(Debug, Clone)]
pub enum Interface {
    At(String),
    Named(String),
}

/// One process's connections to all others.
pub struct Gloo {
    rank: usize,
    mesh: UniquePtr<ffi::Mesh>,
}

impl Gloo {
    /// Connects process `rank` of `size` with the others, which must connect at about the same time. `limit` limits a
    /// connection, [`LONGEST`] times `limit` an attempt.
    pub fn connect(
        rank: usize,
        size: usize,
        interface: &Interface,
        store: Box<dyn KeyStore>,
        limit: Duration,
    ) -> Result<Self, Symptom> {
        let (host, name) = match interface {
            Interface::At(address) => (address.as_str(), ""),
            Interface::Named(name) => ("", name.as_str()),
        };
        // Not retried: a missing interface stays missing.
        let device = ffi::open(host, name).map_err(symptom)?;
        let store = Rc::from(store);
        let mut failure = String::new();
        for attempt in 0..ATTEMPTS {
            let keys = Keys { store: Rc::clone(&store), attempt, hosts: Vec::new() };
            let mesh = try_to_connect(rank, size, &device, &keys, limit);
            let own = mesh.as_ref().err().map(String::as_str).unwrap_or_default();
            // The processes exchange their outcomes, so that all connect again, or none.
            let outcomes = keys.exchange("outcome", rank, size, own.as_bytes()).map_err(Symptom)?;
            let failed = outcomes.iter().position(|outcome| !outcome.is_empty());
            match (mesh, failed) {
                (Ok(mesh), None) => return Ok(Self { rank, mesh }),
                (Err(own), _) => failure = own,
                (Ok(_), Some(other)) => {
                    failure = format!("process {other}: {}", String::from_utf8_lossy(&outcomes[other]));
                }
            }
            tracing::warn!("the processes could not connect ({failure}); attempt {} of {ATTEMPTS}", attempt + 1);
        }
        Err(Symptom(failure))
    }
}

fn try_to_connect(
    rank: usize,
    size: usize,
    device: &SharedPtr<ffi::Device>,
    keys: &Keys,
    limit: Duration,
) -> Result<UniquePtr<ffi::Mesh>, String> {
    let mut token = vec![0; TOKEN];
    getrandom::fill(&mut token).map_err(|error| error.to_string())?;
    let own = [token, ffi::addresses()].concat();
    let shown = keys.exchange("token", rank, size, &own)?;
    if shown.iter().any(|one| one.len() < TOKEN || !(one.len() - TOKEN).is_multiple_of(ADDRESS)) {
        return Err("a token has another length; start all processes from the same build".into());
    }
    let (tokens, mut hosts): (Vec<_>, Vec<_>) = shown.iter().map(|one| one.split_at(TOKEN)).unzip();
    hosts.remove(rank);
    let attempt = keys.attempt;
    let hosts = hosts.into_iter().filter(|_| attempt < GUARDED).map(<[u8]>::to_vec).collect();
    let own = Keys { store: Rc::clone(&keys.store), attempt, hosts };
    let mesh = ffi::connect(rank, size, device, Box::new(own), milliseconds(limit)).map_err(words)?;
    mesh.identify(&tokens.concat(), milliseconds(limit * PATIENCE)).map_err(words)?;
    Ok(mesh)
}

impl Engine for Gloo {
    fn rank(&self) -> usize {
        self.rank
    }

    fn all_reduce(&self, key: Key, values: &mut [f32], limit: Duration) -> Result<(), Symptom> {
        self.mesh.all_reduce(values, tag(key), milliseconds(limit)).map_err(symptom)
    }

    fn all_gather(
        &self,
        key: Key,
        own: &[u8],
        lengths: &[usize],
        all: &mut [u8],
        limit: Duration,
    ) -> Result<(), Symptom> {
        self.mesh.all_gather(own, lengths, all, tag(key), milliseconds(limit)).map_err(symptom)
    }

    fn all_to_all(
        &self,
        key: Key,
        own: &[u8],
        sent: &[usize],
        received: &[usize],
        all: &mut [u8],
        limit: Duration,
    ) -> Result<(), Symptom> {
        self.mesh.all_to_all(own, sent, received, all, tag(key), milliseconds(limit)).map_err(symptom)
    }

    fn broadcast(&self, key: Key, root: usize, values: &mut [u8], limit: Duration) -> Result<(), Symptom> {
        self.mesh.broadcast(values, root, tag(key), milliseconds(limit)).map_err(symptom)
    }

    fn send(&self, key: Key, to: usize, bytes: &[u8], limit: Duration) -> Result<(), Symptom> {
        let (slot, limit) = (slot(key), milliseconds(limit));
        self.mesh.send(&bytes.len().to_le_bytes(), to, slot, limit).map_err(symptom)?;
        self.mesh.send(bytes, to, slot | CONTENT, limit).map_err(symptom)
    }

    fn receive(&self, key: Key, from: usize, limit: Duration) -> Result<Vec<u8>, Symptom> {
        let (slot, limit) = (slot(key), milliseconds(limit));
        let mut length = [0; size_of::<usize>()];
        self.mesh.receive(&mut length, from, slot, limit).map_err(symptom)?;
        let length = usize::from_le_bytes(length);
        if length > MOST_BYTES {
            return Err(Symptom(format!("process {from} announced {length} bytes, more than a message may have")));
        }
        let mut bytes = vec![0; length];
        self.mesh.receive(&mut bytes, from, slot | CONTENT, limit).map_err(symptom)?;
        Ok(bytes)
    }

    fn sending(&self) -> Vec<Duration> {
        self.mesh.sending().into_iter().map(Duration::from_micros).collect()
    }

    fn close(&self) {
        self.mesh.close();
    }
}

/// The operations that a tag can tell apart: layers of batch-norm count up, buckets of gradients count down.
const OPERATIONS: usize = 1 << 12;

/// The tag of Gloo's messages: different for all collectives that may run at the same time.
fn tag(key: Key) -> u32 {
    let operation = match key.operation {
        Operation::ForwardDone => 0,
        Operation::BackwardDone => 1,
        Operation::Counts => 2,
        Operation::Gradients { bucket: 0 } => 3,
        Operation::Gradients { bucket } => OPERATIONS - bucket,
        // Those between two replicas have slots of their own.
        Operation::Activations { .. } | Operation::Gradient { .. } | Operation::State { .. } => 4,
        Operation::EvaluationModel => 5,
        Operation::Validation => 6,
        Operation::StartingPoint => 7,
        Operation::Comparison => 8,
        Operation::Leaving => 9,
        Operation::Weights => 10,
        Operation::RunningStatistics => 11,
        Operation::Recording => 12,
        Operation::Statistics { layer, direction } => 13 + 2 * layer + direction as usize,
    };
    // Beyond 256 micro-batches or 4096 steps tags repeat, long after their first use.
    (operation | ((key.micro_batch % 256) << 12) | ((key.step % 4096) << 20)) as u32
}

/// The bit of a slot for the message itself; without it, for its length.
const CONTENT: u64 = 1 << 62;

/// The slot of a message from one replica to another, apart from those that Gloo makes of tags.
fn slot(key: Key) -> u64 {
    let (kind, to) = match key.operation {
        Operation::Gradient { to } => (1, to),
        Operation::State { worker } => (2, worker),
        Operation::Activations { to } => (0, to),
        _ => (3, 0),
    };
    // Beyond 2^16 replicas and stages, 2^20 micro-batches or 2^22 steps slots repeat, long after their first use.
    let [to, micro_batch, step] = [to % (1 << 16), key.micro_batch % (1 << 20), key.step % (1 << 22)];
    1 << 63 | kind << 58 | (to as u64) << 42 | (micro_batch as u64) << 22 | step as u64
}

/// At least one, since zero means no limit for Gloo.
fn milliseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64 / 4_000_000)
}

fn symptom(exception: cxx::Exception) -> Symptom {
    Symptom(words(exception))
}

/// The first line of an exception, without its position in Gloo's source.
fn words(exception: cxx::Exception) -> String {
    let text = exception.what().lines().next().filter(|line| !line.is_empty()).unwrap_or("Gloo gave no reason");
    with_ports(text.split_once("] ").map_or(text, |(_, words)| words))
}

/// Corrects the byte order of ports, which Gloo prints as they are in the memory of an address.
fn with_ports(text: &str) -> String {
    let mut parts = text.split("]:");
    let mut fixed = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let end = part.bytes().take_while(u8::is_ascii_digit).count();
        let port = part[..end].parse().map_or(part[..end].to_string(), |port| u16::from_be(port).to_string());
        fixed.extend(["]:", &port, &part[end..]]);
    }
    fixed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use kiln_ops::statistics::Direction;

    #[test]
    fn collectives_of_a_large_model_have_tags_of_their_own() {
        let statistics = |layer| [Direction::Forward, Direction::Backward].map(|direction| (layer, direction));
        let operations =
            (0..1000).flat_map(statistics).map(|(layer, direction)| Operation::Statistics { layer, direction });
        let operations: Vec<_> = operations.chain((0..1000).map(|bucket| Operation::Gradients { bucket })).collect();
        let keys = operations.iter().flat_map(|operation| {
            [(0, 0), (0, 1), (1, 0)].map(|(step, micro_batch)| Key { step, micro_batch, operation: *operation })
        });
        assert_eq!(keys.map(tag).collect::<BTreeSet<_>>().len(), 3 * operations.len());
    }

    #[test]
    fn messages_between_workers_have_slots_of_their_own() {
        let operations = (0..300).flat_map(|to| [Operation::Activations { to }, Operation::Gradient { to }]);
        let operations: Vec<_> = operations.chain((0..9).map(|worker| Operation::State { worker })).collect();
        let keys = operations.iter().flat_map(|operation| {
            [(0, 0), (0, 1), (1, 0)].map(|(step, micro_batch)| Key { step, micro_batch, operation: *operation })
        });
        let slots: BTreeSet<u64> = keys.map(slot).flat_map(|slot| [slot, slot | CONTENT]).collect();
        assert_eq!(slots.len(), 2 * 3 * operations.len());
        assert!(slots.iter().all(|slot| slot >> 63 == 1), "those that Gloo makes of tags begin with a zero");
    }
}
