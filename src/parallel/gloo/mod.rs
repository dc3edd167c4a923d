//! Gloo, PyTorch's engine for collectives over TCP, between the processes of a run.
//!
//! `shim.cc` hands Gloo's own operations to Rust; nothing is computed or sent here. Processes find each other through
//! a [`KeyStore`] that whoever connects them provides. Gloo's messages never name the guilty process (the first to
//! give up closes its connections, and the others blame it), so they are passed on as symptoms; who is to blame is for
//! the rendezvous to say.
//!
//! LibTorch carries a Gloo of another version under the same names. The build script links this one first, so that
//! both Kiln and the library itself find it; LibTorch's is never called.

use std::fmt;
use std::time::Duration;

use burn::tensor::bf16;
use cxx::UniquePtr;

use super::collective::{Key, Operation};
use super::engine::{Engine, Symptom};

#[cxx::bridge(namespace = "kiln")]
mod ffi {
    extern "Rust" {
        type Keys;
        fn set(&self, key: &CxxString, value: &[u8]) -> Result<()>;
        fn get(&self, key: &CxxString) -> Result<Vec<u8>>;
    }

    unsafe extern "C++" {
        include!("kiln/src/parallel/gloo/shim.h");
        type Mesh;
        fn connect(
            rank: usize,
            size: usize,
            host: &str,
            interface: &str,
            keys: Box<Keys>,
            limit: u64,
        ) -> Result<UniquePtr<Mesh>>;
        fn all_reduce(&self, values: &mut [f32], tag: u32, limit: u64) -> Result<()>;
        fn all_reduce_bf16(&self, values: &mut [u16], tag: u32, limit: u64) -> Result<()>;
        fn all_gather(&self, own: &[u8], lengths: &[usize], all: &mut [u8], tag: u32, limit: u64) -> Result<()>;
        fn broadcast(&self, values: &mut [u8], root: usize, tag: u32, limit: u64) -> Result<()>;
        fn close(&self);
    }
}

// SAFETY: a mesh is a context of Gloo, whose operations lock what they share, and a list that nobody changes.
unsafe impl Send for ffi::Mesh {}
// SAFETY: as above; operations of different tags may run side by side.
unsafe impl Sync for ffi::Mesh {}

/// A key-value store that all processes see; a key is written once.
pub trait KeyStore: Send {
    /// Writes a value.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String>;

    /// Waits for a value, in bounded time.
    fn get(&self, key: &str) -> Result<Vec<u8>, String>;
}

/// The store as the shim sees it.
struct Keys(Box<dyn KeyStore>);

impl Keys {
    fn set(&self, key: &cxx::CxxString, value: &[u8]) -> Result<(), String> {
        self.0.set(&key.to_string_lossy(), value)
    }

    fn get(&self, key: &cxx::CxxString) -> Result<Vec<u8>, String> {
        self.0.get(&key.to_string_lossy())
    }
}

/// The network interface at which the others reach this process.
#[derive(Debug, Clone)]
pub enum Interface {
    /// The one with this address.
    At(String),
    /// The one with this name.
    Named(String),
}

/// One process's connections to all others.
pub struct Gloo {
    rank: usize,
    size: usize,
    mesh: UniquePtr<ffi::Mesh>,
}

impl fmt::Debug for Gloo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gloo(process {} of {})", self.rank, self.size)
    }
}

impl Gloo {
    /// Connects process `rank` of `size` with the others, which connect at about the same time: `limit` bounds a
    /// connection, the store its own waits.
    ///
    /// # Errors
    /// Gloo's or the store's own words.
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
        let mesh = ffi::connect(rank, size, host, name, Box::new(Keys(store)), milliseconds(limit));
        Ok(Self { rank, size, mesh: mesh.map_err(symptom)? })
    }
}

impl Engine for Gloo {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, key: Key, values: &mut [f32], limit: Duration) -> Result<(), Symptom> {
        self.mesh.all_reduce(values, tag(key), milliseconds(limit)).map_err(symptom)
    }

    fn all_reduce_bf16(&self, key: Key, values: &mut [bf16], limit: Duration) -> Result<(), Symptom> {
        let bits: &mut [u16] = bytemuck::cast_slice_mut(values);
        self.mesh.all_reduce_bf16(bits, tag(key), milliseconds(limit)).map_err(symptom)
    }

    fn all_gather(&self, key: Key, own: &[u8], lengths: &[usize], limit: Duration) -> Result<Vec<u8>, Symptom> {
        let mut all = vec![0; lengths.iter().sum()];
        self.mesh.all_gather(own, lengths, &mut all, tag(key), milliseconds(limit)).map_err(symptom)?;
        Ok(all)
    }

    fn broadcast(&self, key: Key, root: usize, values: &mut [u8], limit: Duration) -> Result<(), Symptom> {
        self.mesh.broadcast(values, root, tag(key), milliseconds(limit)).map_err(symptom)
    }

    fn close(&self) {
        self.mesh.close();
    }
}

/// What Gloo tells messages apart by: different for all that may be under way together.
fn tag(key: Key) -> u32 {
    let operation = match key.operation {
        Operation::ForwardDone => 0,
        Operation::BackwardDone => 1,
        Operation::Tally => 2,
        Operation::Gradients { bucket: 0 } => 3,
        Operation::Gradients { bucket } => 256 - bucket,
        Operation::Weights => 4,
        Operation::EvaluationModel => 5,
        Operation::Validation => 6,
        Operation::StartingPoint => 7,
        Operation::Statistics { layer, direction } => 8 + 2 * layer + direction as usize,
    };
    // 256 operations, 256 micro-batches, 65,536 steps; then numbers come back, long after their first use.
    ((operation % 256) | ((key.micro_batch % 256) << 8) | ((key.step % 65_536) << 16)) as u32
}

/// At least one: a limit of zero would be none for Gloo.
fn milliseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64 / 4_000_000)
}

/// The first line of an exception, without the place in Gloo's source it came from.
fn symptom(exception: cxx::Exception) -> Symptom {
    let text = exception.what().lines().next().unwrap_or_default();
    Symptom(text.split_once("] ").map_or(text, |(_, words)| words).to_string())
}
