//! Collectives between processes, for the replicas they host; `sums.rs` makes sums of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::engine::{Engine, Judge};
use super::{Broken, DeviceEngine, Key, Symptom};

/// The time limit before the first step, when the first process reads a checkpoint; losses are detected earlier.
const STARTUP: Duration = Duration::from_secs(3600);

/// The engine between the processes that host a stage, and the replicas of each of them.
pub type StageEngine = (Arc<dyn Engine>, Vec<Range<usize>>);

/// The engines for tensors that need not go through the host.
pub struct Links {
    /// Those of the replicas of each stage, if several processes host it and this is one of them.
    pub stages: Vec<Option<Devices>>,
    /// From one worker to another, by both, where one of them is in this process and the other is not.
    pub wires: Vec<(Wire, Arc<dyn DeviceEngine>)>,
}

/// The worker that sends, and the one that receives.
pub(crate) type Wire = [usize; 2];

/// The engines for the tensors of this process's devices.
pub struct Devices {
    pub engines: Vec<Arc<dyn DeviceEngine>>,
    pub first: usize,
    pub blocks: Vec<Range<usize>>,
}

/// Those that exchange by one engine: the processes that host the run or a stage, their devices, or the two ends of a
/// wire.
#[derive(Clone)]
pub(super) struct Peers {
    engine: Arc<dyn Engine>,
    /// Takes tensors, if they need not go through the host.
    pub(super) tensors: Option<Arc<dyn DeviceEngine>>,
    judge: Arc<dyn Judge>,
    /// This one, from 0.
    pub(super) rank: usize,
    /// The replicas that each of them hosts.
    pub(super) blocks: Vec<Range<usize>>,
    /// Whether sums are taken in the order of the tree.
    pub(super) ordered: bool,
}

/// The processes of a run or of a stage, and what takes tensors between them.
#[derive(Clone)]
pub struct Processes {
    pub(super) peers: Peers,
    /// The devices of this process, each among those of all processes, if tensors need not go through the host.
    pub(super) devices: Vec<Peers>,
    /// By stages, if there are several; without those that one process hosts, or only others.
    stages: Vec<Option<Self>>,
    /// Two workers each, the first of which sends tensors to the second, if they need not go through the host.
    pub(super) wires: BTreeMap<Wire, Peers>,
}

impl Processes {
    /// `blocks` are the replicas that each process hosts, `ordered` asks for sums in the order of the tree.
    pub fn new(engine: Arc<dyn Engine>, judge: Arc<dyn Judge>, blocks: Vec<Range<usize>>, ordered: bool) -> Self {
        let rank = engine.rank();
        Self::of(Peers { engine, tensors: None, judge, rank, blocks, ordered })
    }

    fn of(peers: Peers) -> Self {
        Self { peers, devices: Vec::new(), stages: Vec::new(), wires: BTreeMap::new() }
    }

    /// With an engine for each stage: between the processes that host it, if there are several and this is one of them.
    pub fn with_stages(mut self, engines: Vec<Option<StageEngine>>) -> Self {
        let peers = |(engine, blocks): StageEngine| Peers { rank: engine.rank(), engine, blocks, ..self.peers.clone() };
        self.stages = engines.into_iter().map(|engine| engine.map(|engine| Self::of(peers(engine)))).collect();
        self
    }

    /// With engines for tensors, if they need not go through the host. The engines for stages come first.
    pub fn with_links(mut self, links: Option<Links>) -> Self {
        let Some(Links { stages, wires }) = links else { return self };
        for (ends, engine) in wires {
            let hosted = self.peers.hosted();
            let rank = ends.iter().position(|worker| hosted.contains(worker)).unwrap_or_default();
            self.wires.insert(ends, Peers { rank, tensors: Some(engine), ..self.peers.clone() });
        }
        let is_one_stage = self.stages.is_empty();
        for (stage, devices) in stages.into_iter().enumerate() {
            let of_stage =
                if is_one_stage { Some(&mut self) } else { self.stages.get_mut(stage).and_then(Option::as_mut) };
            if let (Some(processes), Some(Devices { engines, first, blocks })) = (of_stage, devices) {
                for (rank, engine) in (first..).zip(engines) {
                    let (tensors, blocks) = (Some(engine), blocks.clone());
                    processes.devices.push(Peers { rank, tensors, blocks, ..processes.peers.clone() });
                }
            }
        }
        self
    }

    /// The processes that exchange the gradients of `stage`, if there are several.
    pub(super) fn of_stage(&self, stage: usize) -> Option<Self> {
        if self.stages.is_empty() { Some(self.clone()) } else { self.stages.get(stage)?.clone() }
    }

    pub fn rank(&self) -> usize {
        self.peers.rank
    }

    /// The bytes of process `root`; only for the time before the first step.
    pub fn broadcast_to_all(&self, key: Key, root: usize, values: Option<Vec<u8>>) -> Result<Vec<u8>, Broken> {
        let engine = &self.peers.engine;
        let own = values.filter(|_| root == engine.rank());
        let mut length = own.as_ref().map_or(0, Vec::len).to_le_bytes();
        self.peers.with_all(key, || {
            engine.broadcast(key, root, &mut length, STARTUP)?;
            let mut values = own.unwrap_or_else(|| vec![0; usize::from_le_bytes(length)]);
            if !values.is_empty() {
                engine.broadcast(key, root, &mut values, STARTUP)?;
            }
            Ok(values)
        })
    }

    /// The numbers of all processes in the order of ranks, equally many of each; only before the first step.
    pub fn gather_from_all(&self, key: Key, own: &[u64]) -> Result<Vec<u64>, Broken> {
        self.peers.exchange(key, own, None, vec![own.len(); self.peers.blocks.len()], STARTUP)
    }

    pub fn close(&self) {
        let links = self.devices.iter().chain(self.wires.values());
        links.flat_map(|link| &link.tensors).for_each(|engine| engine.close());
        self.peers.engine.close();
    }
}

impl Peers {
    /// See [`Engine::sending`].
    pub(super) fn sending(&self) -> Vec<Duration> {
        self.engine.sending()
    }

    pub(super) fn hosted(&self) -> Range<usize> {
        self.blocks[self.rank].clone()
    }

    pub(super) fn replicas(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.end)
    }

    /// The sum over all processes, in place, in the engine's order.
    pub(super) fn all_reduce(&self, key: Key, values: &mut [f32], limit: Duration) -> Result<(), Broken> {
        self.with_all(key, || self.engine.all_reduce(key, values, limit))
    }

    /// Sends the next `sent[i]` values of `own` to process `i`, or all of them to every process, and returns the
    /// `received[i]` values of each process `i`.
    pub(super) fn exchange<T: bytemuck::Pod>(
        &self,
        key: Key,
        own: &[T],
        sent: Option<Vec<usize>>,
        received: Vec<usize>,
        limit: Duration,
    ) -> Result<Vec<T>, Broken> {
        let bytes = |lengths: Vec<usize>| lengths.iter().map(|length| length * size_of::<T>()).collect::<Vec<_>>();
        let mut all = bytemuck::zeroed_vec(received.iter().sum());
        let (own, sent, received) = (bytemuck::cast_slice(own), sent.map(bytes), bytes(received));
        let filled = bytemuck::cast_slice_mut(&mut all);
        self.with_all(key, || match sent {
            Some(sent) => self.engine.all_to_all(key, own, &sent, &received, filled, limit),
            None => self.engine.all_gather(key, own, &received, filled, limit),
        })?;
        Ok(all)
    }

    /// The numbers of all replicas in the order of ranks; `own` has `length` numbers per replica of this process.
    pub(super) fn gather_replicas<T: bytemuck::Pod>(
        &self,
        key: Key,
        own: &[T],
        length: usize,
        limit: Duration,
    ) -> Result<Vec<T>, Broken> {
        self.exchange(key, own, None, self.blocks.iter().map(|block| block.len() * length).collect(), limit)
    }

    /// Sends bytes to the process that hosts replica `to`.
    pub(super) fn send(&self, key: Key, to: usize, bytes: &[u8], limit: Duration) -> Result<(), Broken> {
        self.with_all(key, || self.engine.send(key, self.host_of(to), bytes, limit))
    }

    /// The bytes that the process of replica `from` sends.
    pub(super) fn receive(&self, key: Key, from: usize, limit: Duration) -> Result<Vec<u8>, Broken> {
        self.with_all(key, || self.engine.receive(key, self.host_of(from), limit))
    }

    fn host_of(&self, replica: usize) -> usize {
        self.blocks.iter().position(|block| block.contains(&replica)).unwrap_or_default()
    }

    /// Runs a collective; after an error asks the judge for the verdict.
    pub(super) fn with_all<T>(&self, key: Key, act: impl FnOnce() -> Result<T, Symptom>) -> Result<T, Broken> {
        self.judge.doing(&key.to_string());
        act().map_err(|symptom| Broken::Peer(self.judge.verdict(&symptom)))
    }
}
