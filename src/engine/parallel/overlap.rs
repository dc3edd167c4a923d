//! The all-reduce of gradients during the backward pass that computes them.
//!
//! The backward pass reports the gradient of each convolution kernel as soon as it is final. Kernels are put into
//! buckets of about 4 MB, from the last to the first, in the order of the backward pass; a full bucket goes to a thread
//! that only reduces. Buckets are sent in the same order on all replicas, so that no two of them can wait for each
//! other in a cycle. Parameters without a listener (batch-norm's and the classifier's, half a percent of ResNet-18) are
//! reduced after the backward pass. Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
//! Training".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use burn::module::ParamId;
use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;
use kiln_ops::tensor;
use kiln_system::{Error, Result};
use parking_lot::Mutex;

use super::{Broken, Collective, HostBackend, Key, Operation, ReducePrecision, Share, Wait, waiting};
use crate::nn::Kernel;

/// The least elements of a bucket, except for the last one: 4 MiB.
const BUCKET: usize = 1 << 20;

/// A bucket's sum over all replicas.
pub(super) struct Reduced<'a, B: HostBackend> {
    pub(super) kernels: &'a [Kernel],
    pub(super) sum: Tensor<B, 1>,
}

/// A bucket to reduce, or why it could not be filled.
type Job<B> = (Key, std::result::Result<Share<B>, Broken>);

/// The sums of the buckets, in the order in which they were sent.
type Sums<B> = Arc<Mutex<Receiver<std::result::Result<Tensor<B, 1>, Broken>>>>;

/// The buckets of a replica, and the thread that reduces them.
pub(super) struct Overlap<B: HostBackend> {
    buckets: Arc<[Vec<Kernel>]>,
    jobs: Sender<Job<B>>,
    sums: Sums<B>,
}

impl<B: HostBackend> Overlap<B> {
    /// Starts the thread for a model with these kernels. It ends with this value, or with the group.
    pub(super) fn new(kernels: Vec<Kernel>, collective: Arc<Collective>, precision: ReducePrecision) -> Result<Self> {
        let (jobs, inbox) = channel::<Job<B>>();
        let (outbox, sums) = channel();
        let rank = collective.rank();
        let reduce = move || {
            B::stay_on_one_thread();
            for (key, share) in inbox {
                let _phase = tracing::info_span!("all-reduce of a bucket").entered();
                let sum = share.and_then(|share| share.all_reduce(collective.as_ref(), key, precision));
                if outbox.send(sum).is_err() {
                    break;
                }
            }
        };
        let builder = std::thread::Builder::new().name(format!("all-reduce-{rank}"));
        builder.spawn(reduce).map_err(|reason| Error::Training(format!("no thread for the all-reduce: {reason}")))?;
        let buckets = in_buckets(kernels.into_iter().rev(), |kernel| kernel.length).into();
        Ok(Self { buckets, jobs, sums: Arc::new(Mutex::new(sums)) })
    }

    /// What takes the gradients of the last backward pass of a step, whose collectives `key` names.
    pub(super) fn listen(&self, key: Key, collective: &Arc<Collective>) -> Arc<Early<B>> {
        let (buckets, jobs, sums) = (self.buckets.clone(), self.jobs.clone(), self.sums.clone());
        let gradients = buckets.iter().map(|_| BTreeMap::new()).collect();
        let state = Mutex::new(State { gradients, sent: 0, done: Vec::new() });
        Arc::new(Early { key, buckets, jobs, sums, collective: collective.clone(), state })
    }

    /// Waits for the sums of the buckets that were sent.
    pub(super) fn sums(&self, early: &Early<B>) -> Result<Vec<Reduced<'_, B>>> {
        early.settle();
        let mut state = early.state.lock();
        if state.done.len() < state.sent {
            return Err(Error::Training("the thread of the all-reduce ended before the run".into()));
        }
        let sums = state.done.drain(..);
        self.buckets.iter().zip(sums).map(|(kernels, sum)| Ok(Reduced { kernels, sum: sum? })).collect()
    }
}

pub(super) fn in_buckets<T>(tensors: impl Iterator<Item = T>, length: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut buckets: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for tensor in tensors {
        if room == 0 {
            buckets.push(Vec::new());
            room = BUCKET;
        }
        room = room.saturating_sub(length(&tensor));
        buckets.last_mut().expect("there is one").push(tensor);
    }
    buckets
}

/// The gradients of one backward pass, as they become final.
pub(super) struct Early<B: HostBackend> {
    key: Key,
    buckets: Arc<[Vec<Kernel>]>,
    jobs: Sender<Job<B>>,
    sums: Sums<B>,
    collective: Arc<Collective>,
    state: Mutex<State<B>>,
}

struct State<B: HostBackend> {
    /// Of each bucket those that there are, by the kernel's place in it.
    gradients: Vec<BTreeMap<usize, Tensor<B, 1>>>,
    /// How many buckets were sent; always the first ones.
    sent: usize,
    /// The sums of those that are reduced.
    done: Vec<std::result::Result<Tensor<B, 1>, Broken>>,
}

impl<B: HostBackend> Early<B> {
    /// Waits until the buckets that were sent are reduced, or their thread has ended.
    pub(super) fn settle(&self) {
        let State { sent, done, .. } = &mut *self.state.lock();
        let sums = self.sums.lock();
        waiting(Wait::Others, || done.extend(sums.iter().take(*sent - done.len())));
    }

    /// Takes the gradient of a parameter, with those of all micro-batches before.
    pub(super) fn ready(&self, parameter: ParamId, gradient: FloatTensor<B>) {
        let place = |kernels: &Vec<Kernel>| kernels.iter().position(|kernel| kernel.id == parameter);
        let found = self.buckets.iter().enumerate().find_map(|(bucket, kernels)| Some((bucket, place(kernels)?)));
        let Some((bucket, place)) = found else { return };
        let State { gradients, sent, .. } = &mut *self.state.lock();
        let flat = tensor(B::float_reshape(gradient, [self.buckets[bucket][place].length].into()));
        gradients[bucket].insert(place, flat);
        while gradients.get(*sent).is_some_and(|of| of.len() == self.buckets[*sent].len()) {
            let full = std::mem::take(&mut gradients[*sent]).into_values().collect();
            *sent += 1;
            let key = Key { operation: Operation::Gradients { bucket: *sent }, ..self.key };
            // If the thread has ended, `sums` returns the error.
            drop(self.jobs.send((key, Share::new(&self.collective, full))));
        }
    }
}
