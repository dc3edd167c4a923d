//! The all-reduce of gradients during the backward pass that computes them.
//!
//! The backward pass reports the gradient of each convolution kernel as soon as it is final. Kernels are put into
//! buckets of about 4 MB, from the last to the first, in the order of the backward pass; a full bucket goes to a thread
//! that only reduces. Buckets are sent in the same order on all replicas, so that no two of them can wait for each
//! other in a cycle. Parameters without a listener (batch-norm's and the classifier's, half a percent of ResNet-18) are
//! reduced after the backward pass. Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
//! Training".

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use burn::module::ParamId;
use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;
use kiln_ops::tensor;
use kiln_system::{Error, Result};
use parking_lot::{Mutex, MutexGuard};

use super::collective::Collective;
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::key::{Broken, Key, Operation};
use super::sums::Share;
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
    buckets: Vec<Vec<Kernel>>,
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
        let backwards = kernels.into_iter().rev();
        Ok(Self { buckets: in_buckets(backwards, |kernel| kernel.length), jobs, sums: Arc::new(Mutex::new(sums)) })
    }

    /// What takes the gradients of the last backward pass of a step, whose collectives `key` names.
    pub(super) fn listen(&self, key: Key, collective: &Arc<Collective>) -> Arc<Early<B>> {
        let bucket = |kernels: &Vec<Kernel>| Filling { kernels: kernels.clone(), gradients: BTreeMap::new() };
        let fillings = self.buckets.iter().map(bucket).collect();
        let state = Mutex::new(State { fillings, sent: 0, done: Vec::new() });
        Arc::new(Early { key, jobs: self.jobs.clone(), sums: self.sums.clone(), collective: collective.clone(), state })
    }

    /// Waits for the sums of the buckets that were sent.
    pub(super) fn sums(&self, early: &Early<B>) -> Result<Vec<Reduced<'_, B>>> {
        early.settle();
        let mut state = early.lock();
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
    jobs: Sender<Job<B>>,
    sums: Sums<B>,
    collective: Arc<Collective>,
    state: Mutex<State<B>>,
}

struct State<B: HostBackend> {
    fillings: Vec<Filling<B>>,
    /// How many buckets were sent; always the first ones.
    sent: usize,
    /// The sums of those that are reduced.
    done: Vec<std::result::Result<Tensor<B, 1>, Broken>>,
}

struct Filling<B: HostBackend> {
    kernels: Vec<Kernel>,
    /// By the kernel's place in the bucket.
    gradients: BTreeMap<usize, Tensor<B, 1>>,
}

impl<B: HostBackend> Filling<B> {
    fn keep(&mut self, place: usize, gradient: FloatTensor<B>) {
        let gradient = tensor::<B, 1>(B::float_reshape(gradient, [self.kernels[place].length].into()));
        self.gradients.insert(place, gradient);
    }

    fn take(&mut self, collective: &Collective) -> std::result::Result<Share<B>, Broken> {
        Share::new(collective, std::mem::take(&mut self.gradients).into_values().collect())
    }

    fn is_full(&self) -> bool {
        self.gradients.len() == self.kernels.len()
    }
}

impl<B: HostBackend> fmt::Debug for Early<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Early({})", self.key)
    }
}

impl<B: HostBackend> Early<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock()
    }

    /// Waits until the buckets that were sent are reduced, or their thread has ended.
    pub(super) fn settle(&self) {
        let State { sent, done, .. } = &mut *self.lock();
        let sums = self.sums.lock();
        done.extend(sums.iter().take(*sent - done.len()));
    }

    /// Takes the gradient of a parameter, with those of all micro-batches before.
    pub(super) fn ready(&self, parameter: ParamId, gradient: FloatTensor<B>) {
        let mut state = self.lock();
        let State { fillings, sent, .. } = &mut *state;
        let found = fillings.iter_mut().find_map(|filling| {
            let place = filling.kernels.iter().position(|kernel| kernel.id == parameter)?;
            Some((filling, place))
        });
        let Some((filling, place)) = found else { return };
        filling.keep(place, gradient);
        while let Some(filling) = fillings.get_mut(*sent).filter(|filling| filling.is_full()) {
            *sent += 1;
            let key = Key { operation: Operation::Gradients { bucket: *sent }, ..self.key };
            // If the thread has ended, `sums` returns the error.
            drop(self.jobs.send((key, filling.take(&self.collective))));
        }
    }
}
