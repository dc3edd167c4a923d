//! The all-reduce of gradients during the backward pass that computes them.
//!
//! The backward pass reports the gradient of each convolution kernel as soon as it is final. Kernels are put into
//! buckets of about 4 MB, from the last to the first, in the order of the backward pass; a full bucket goes to a thread
//! that only reduces. Buckets are sent in the same order on all replicas, so that no two of them can wait for each
//! other in a cycle. Parameters without a listener (batch-norm's and the classifier's, half a percent of ResNet-18) are
//! reduced after the backward pass. Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
//! Training".

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::ParamId;
use burn::tensor::{Tensor, bf16};
use rayon::prelude::*;

use super::collective::Collective;
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::key::{Broken, Key, Operation};
use crate::error::{Error, Result};
use crate::nn::Kernel;
use crate::ops::{GradientListener, primitive};

/// The least elements of a bucket, except for the last one: 4 MiB.
const BUCKET: usize = 1 << 20;

/// A bucket's sum over all replicas.
pub(super) struct Reduced<'a> {
    pub(super) kernels: &'a [Kernel],
    pub(super) sum: Arc<Vec<f32>>,
}

/// A sum over replicas, or why there is none.
type Sum = std::result::Result<Arc<Vec<f32>>, Broken>;

/// The buckets of a replica, and the thread that reduces them.
#[derive(Debug)]
pub(super) struct Overlap {
    buckets: Vec<Vec<Kernel>>,
    jobs: Sender<(Key, Vec<f32>)>,
    sums: Receiver<Sum>,
}

impl Overlap {
    /// Starts the thread for a model with these kernels. It ends with this value, or with the group.
    pub(super) fn new(kernels: Vec<Kernel>, collective: Arc<Collective>, precision: ReducePrecision) -> Result<Self> {
        let (jobs, inbox) = channel::<(Key, Vec<f32>)>();
        let (outbox, sums) = channel();
        let rank = collective.rank();
        let reduce = move || {
            for (key, share) in inbox {
                let _phase = tracing::info_span!("all-reduce of a bucket").entered();
                let sum = all_reduce(collective.as_ref(), key, share, precision);
                if outbox.send(sum).is_err() {
                    break;
                }
            }
        };
        let builder = std::thread::Builder::new().name(format!("all-reduce-{rank}"));
        builder.spawn(reduce).map_err(|reason| Error::Training(format!("no thread for the all-reduce: {reason}")))?;
        let backwards = kernels.into_iter().rev();
        Ok(Self { buckets: in_buckets(backwards, |kernel| kernel.length), jobs, sums })
    }

    /// The listener for the last backward pass of a step, whose collectives `key` names; `earlier` are the flat
    /// gradients of the micro-batches before, which are added.
    pub(super) fn listen<B: HostBackend>(
        &self,
        key: Key,
        earlier: &[Tensor<B, 1>],
        collective: &Collective,
    ) -> Arc<Early<B>> {
        let bucket = |kernels: &Vec<Kernel>| {
            let earlier = kernels.iter().filter_map(|kernel| earlier.get(kernel.place).cloned()).collect();
            Filling {
                kernels: kernels.clone(),
                earlier,
                filled: 0,
                waiting: BTreeMap::new(),
                share: collective.buffer(),
            }
        };
        let fillings = self.buckets.iter().map(bucket).collect();
        let state = State { fillings, sent: 0 };
        Arc::new(Early { key, jobs: self.jobs.clone(), state: Mutex::new(state) })
    }

    /// Waits for the sums of the buckets that were sent.
    pub(super) fn sums<B: HostBackend>(&self, early: &Early<B>) -> Result<Vec<Reduced<'_>>> {
        let sent = early.lock().sent;
        let ended = |_| Error::Training("the thread of the all-reduce ended before the run".into());
        let reduced = |kernels| Ok(Reduced { kernels, sum: self.sums.recv().map_err(ended)?? });
        self.buckets[..sent].iter().map(Vec::as_slice).map(reduced).collect()
    }
}

/// Puts tensors into buckets, in their order.
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
#[derive(Debug)]
pub(super) struct Early<B: HostBackend> {
    key: Key,
    jobs: Sender<(Key, Vec<f32>)>,
    state: Mutex<State<B>>,
}

#[derive(Debug)]
struct State<B: HostBackend> {
    fillings: Vec<Filling<B>>,
    /// How many buckets were sent; always the first ones.
    sent: usize,
}

/// A bucket that is being filled.
#[derive(Debug)]
struct Filling<B: HostBackend> {
    kernels: Vec<Kernel>,
    /// The gradients of earlier micro-batches, if there are any.
    earlier: Vec<Tensor<B, 1>>,
    /// How many of the kernels are in the share.
    filled: usize,
    /// Gradients that came before their turn.
    waiting: BTreeMap<usize, Vec<f32>>,
    share: Vec<f32>,
}

impl<B: HostBackend> Filling<B> {
    fn add(&mut self, place: usize, append: &dyn Fn(&mut Vec<f32>)) {
        if place > self.filled {
            let mut values = Vec::new();
            append(&mut values);
            self.waiting.insert(place, values);
            return;
        }
        if self.filled == 0 {
            self.share.reserve_exact(self.kernels.iter().map(|kernel| kernel.length).sum());
        }
        append(&mut self.share);
        self.close();
        while let Some(values) = self.waiting.remove(&self.filled) {
            self.share.extend_from_slice(&values);
            self.close();
        }
    }

    /// Adds the gradients of earlier micro-batches for the kernel at the end of the share.
    fn close(&mut self) {
        if let Some(earlier) = self.earlier.get(self.filled) {
            let mut values = Vec::with_capacity(earlier.dims()[0]);
            B::append_to(primitive(earlier.clone()), &mut values);
            let start = self.share.len() - values.len();
            self.share[start..].iter_mut().zip(values).for_each(|(sum, earlier)| *sum += earlier);
        }
        self.filled += 1;
    }

    fn is_full(&self) -> bool {
        self.filled == self.kernels.len()
    }
}

impl<B: HostBackend> Early<B> {
    fn lock(&self) -> std::sync::MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: HostBackend> GradientListener for Early<B> {
    fn ready(&self, parameter: ParamId, append: &dyn Fn(&mut Vec<f32>)) {
        let mut state = self.lock();
        let State { fillings, sent } = &mut *state;
        let found = fillings.iter_mut().find_map(|filling| {
            let place = filling.kernels.iter().position(|kernel| kernel.id == parameter)?;
            Some((filling, place))
        });
        let Some((filling, place)) = found else { return };
        filling.add(place, append);
        while let Some(filling) = fillings.get_mut(*sent).filter(|filling| filling.is_full()) {
            *sent += 1;
            let key = Key { operation: Operation::Gradients { bucket: *sent }, ..self.key };
            // If the thread has ended, `sums` returns the error.
            drop(self.jobs.send((key, std::mem::take(&mut filling.share))));
        }
    }
}

/// The sum of all replicas' shares, which are sent in `precision`.
pub(super) fn all_reduce(collective: &Collective, key: Key, share: Vec<f32>, precision: ReducePrecision) -> Sum {
    match precision {
        ReducePrecision::F32 => collective.all_reduce(key, share),
        ReducePrecision::Bf16 => {
            let halves = share.par_iter().map(|value| bf16::from_f32(*value)).collect();
            collective.recycle(Arc::new(share));
            collective.all_reduce_bf16(key, halves)
        }
    }
}
