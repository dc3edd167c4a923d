//! What processes tell each other during a step, and when.

use std::time::Duration;

use kiln_engine::nn::state_dict;
use kiln_engine::parallel::engine::{Engine, Symptom};
use kiln_engine::parallel::gloo::Gloo;
use kiln_engine::parallel::{Key, Operation};
use kiln_engine::parallel::{Processes, StartingPoint, World};
use kiln_engine::state::{StateDict, sha256};
use kiln_ops::statistics::Direction;

use super::*;
use crate::engines::connected_by;
use crate::reference::run::{Recorded, run_with};
use crate::small::{plan_of, setup};
use crate::until::until;

/// The statistics that a backward pass asks for at its end.
const LAST: Operation = Operation::Statistics { layer: 0, direction: Direction::Backward };

/// Gloo, and what went through it in the order of its beginning.
struct Logged {
    gloo: Gloo,
    log: Arc<Mutex<Vec<Key>>>,
}

impl Logged {
    /// The last statistics of a step wait for the first bucket: on a busy machine its thread may be late.
    fn note(&self, key: Key) {
        if (key.operation, key.micro_batch) == (LAST, 1) {
            let bucket = Key { micro_batch: 0, operation: Operation::Gradients { bucket: 1 }, ..key };
            until("the first bucket", || self.log.lock().unwrap().contains(&bucket));
        }
        self.log.lock().unwrap().push(key);
    }
}

impl Engine for Logged {
    fn rank(&self) -> usize {
        self.gloo.rank()
    }

    fn all_reduce(&self, key: Key, values: &mut [f32], limit: Duration) -> Result<(), Symptom> {
        self.note(key);
        self.gloo.all_reduce(key, values, limit)
    }

    fn all_gather(
        &self,
        key: Key,
        own: &[u8],
        lengths: &[usize],
        all: &mut [u8],
        limit: Duration,
    ) -> Result<(), Symptom> {
        self.note(key);
        self.gloo.all_gather(key, own, lengths, all, limit)
    }

    /// Followed by an [`Engine::all_gather`].
    fn all_to_all(
        &self,
        key: Key,
        own: &[u8],
        sent: &[usize],
        received: &[usize],
        all: &mut [u8],
        limit: Duration,
    ) -> Result<(), Symptom> {
        self.gloo.all_to_all(key, own, sent, received, all, limit)
    }

    fn broadcast(&self, key: Key, root: usize, values: &mut [u8], limit: Duration) -> Result<(), Symptom> {
        self.gloo.broadcast(key, root, values, limit)
    }

    fn send(&self, key: Key, to: usize, bytes: &[u8], limit: Duration) -> Result<(), Symptom> {
        self.gloo.send(key, to, bytes, limit)
    }

    fn receive(&self, key: Key, from: usize, limit: Duration) -> Result<Vec<u8>, Symptom> {
        self.gloo.receive(key, from, limit)
    }

    fn close(&self) {
        self.gloo.close();
    }
}

/// Wide enough for more than one bucket: 2.8 million weights.
fn model() -> ModelConfig {
    ModelConfig { stem: Stem::Imagenet, width: 32, ..ModelConfig::default() }
}

fn weights<B: HostBackend>() -> StateDict {
    let device = B::open(0).unwrap();
    state_dict(&initialize(ResNet::<Autodiff<B>>::new(&model(), 10, 0.0, &device), 0).unwrap())
}

/// Two steps of two replicas, of two micro-batches each.
fn trained<B: HostBackend>(rank: usize, others: Option<Processes>) -> Recorded {
    let mut setup = setup(2, 4, 0.05);
    setup.accumulation_steps = 2;
    let mut experiment = plan_of(&setup, 0..32);
    // LibTorch adds up in another order on another number of threads.
    experiment.plan.threads = 1;
    let processes = if others.is_some() { 2 } else { 1 };
    experiment.plan.world = World::staged([2, 1], rank, vec![1; processes], vec![0]);
    run_with::<B>(experiment, &model(), 10, &weights::<B>(), StartingPoint::default(), others).unwrap()
}

/// Buckets leave in one order, the first ones before the backward pass is over, and the sums are those of one process.
pub fn buckets_leave_early<B: HostBackend>(ordered: bool) {
    crate::stand_in::over_gloo_only();
    let log = Arc::new(Mutex::new(Vec::new()));
    let world = World::staged([2, 1], 0, vec![1; 2], vec![0]);
    let logged = |gloo: Gloo| -> Arc<dyn Engine> {
        let log = if gloo.rank() == 0 { log.clone() } else { Arc::default() };
        Arc::new(Logged { gloo, log })
    };
    let others = connected_by(&world, ordered, logged).into_iter().enumerate();
    let mut done: Vec<Recorded> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            others.map(|(rank, others)| scope.spawn(move || trained::<B>(rank, Some(others)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (together, alone) = (done.swap_remove(0), trained::<B>(0, None));
    for step in 0..2 {
        let log: Vec<Key> = log.lock().unwrap().iter().filter(|key| key.step == step).copied().collect();
        let buckets = log.iter().filter_map(|key| match key.operation {
            Operation::Gradients { bucket } => Some((bucket, key.micro_batch)),
            _ => None,
        });
        assert_eq!(buckets.collect::<Vec<_>>(), [(1, 0), (2, 0), (3, 0), (0, 0)], "step {step}");
        let at = |operation| log.iter().rposition(|key| key.operation == operation).unwrap();
        assert!(at(Operation::Gradients { bucket: 1 }) < at(LAST), "step {step}: {log:?}");
    }
    let last = |done: &Recorded| done.states.last().unwrap().weights.clone();
    if ordered {
        assert_eq!(sha256(&last(&together)), sha256(&last(&alone)));
    }
    let distance = crate::small::distance(&last(&together), &last(&alone));
    assert!(distance < 1e-5, "{distance:.1e}");
}

/// Two steps of two processes that `connect` connects with sums in the order of the tree: the weights of one process.
pub fn trained_over<B: HostBackend>(connect: impl FnOnce(&World) -> Vec<Processes>) {
    let others = connect(&World::staged([2, 1], 0, vec![1; 2], vec![0]));
    let mut done: Vec<Recorded> = std::thread::scope(|scope| {
        let start = |(rank, others)| scope.spawn(move || trained::<B>(rank, Some(others)));
        let threads: Vec<_> = others.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (together, alone) = (done.swap_remove(0), trained::<B>(0, None));
    let last = |done: &Recorded| sha256(&done.states.last().unwrap().weights);
    assert_eq!(last(&together), last(&alone));
}

on_every_backend! {
    buckets_leave_during_the_backward_pass => || buckets_leave_early::<TestBackend>(false);
    ordered_sums_do_not_depend_on_buckets => || buckets_leave_early::<TestBackend>(true);
}
