//! Sums of tensors over the replicas of all processes, without the host: by the methods of `processes.rs` and with the
//! same bits; without `--deterministic` in the order of the engine.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{FloatDType, Tensor};

use super::collective::Collective;
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::engine::{Mark, Symptom};
use super::key::{Broken, Key};
use super::processes::Processes;
use super::tree::{fold, roots};
use crate::ops::statistics::Part;
use crate::ops::{HostOps, Memory, Shared, primitive, tensor};

/// A tensor for other threads, and a mark behind the work that computes it.
struct Queued<B: HostOps> {
    values: Shared<B>,
    ready: Mark,
}

/// A flat tensor below Burn's fusion.
type Flat<B> = Tensor<<B as HostOps>::Below, 1>;

/// The element-wise sum of the tensors of all replicas; `share` is this replica's, computed before `ready`. It is of f32,
/// and sent in `precision`.
///
/// # Errors
/// Those of [`Collective::all_reduce`].
pub fn sum_across<B: HostBackend>(
    collective: &Collective,
    key: Key,
    share: Tensor<B, 1>,
    ready: Mark,
    precision: ReducePrecision,
) -> Result<Tensor<B, 1>, Broken> {
    let device = share.device();
    let combine = |parts: Vec<Part>, processes: &Processes, limit| {
        let queued = |part: Part| part.downcast::<Queued<B>>().expect("all bring tensors of one backend");
        let shares = parts.into_iter().map(|part| Arc::into_inner(queued(part)).expect("a share has one owner"));
        let exchange = Exchange { processes, key, limit };
        exchange.sum::<B>(shares.collect(), precision).map(|sum| Arc::new(primitive(sum)) as Part)
    };
    let share = Queued::<B> { values: B::share(primitive(share)), ready };
    let sum = collective.meet_processes(key, Arc::new(share), combine)?;
    let sum = sum.downcast::<Shared<B>>().expect("the sum is a tensor");
    Ok(tensor(B::adopt(Arc::unwrap_or_clone(sum), &device)))
}

/// One collective with the other processes.
struct Exchange<'a> {
    processes: &'a Processes,
    key: Key,
    limit: Duration,
}

impl Exchange<'_> {
    /// The sum over all replicas; `shares` are those of this process.
    fn sum<B: HostBackend>(&self, shares: Vec<Queued<B>>, precision: ReducePrecision) -> Result<Flat<B>, Broken> {
        let halves = precision == ReducePrecision::Bf16;
        // A sum of several shares is computed after all of their marks.
        let ready = (shares.len() == 1).then(|| shares[0].ready.clone());
        let shares: Vec<Flat<B>> = shares.into_iter().map(|share| tensor(share.values)).collect();
        // All on the device of the first one, which the engine knows.
        let device = shares[0].device();
        let rounded = |share: Flat<B>| if halves { share.cast(FloatDType::BF16) } else { share };
        let shares = shares.into_iter().map(|share| rounded(share.to_device(&device)));
        if self.processes.ordered {
            return self.ordered::<B>(shares.collect(), halves);
        }
        let sum = folded::<B>(shares.map(widened::<B>).map(Some).collect());
        if halves { self.of_halves::<B>(sum) } else { self.fast::<B>(sum, ready) }
    }

    /// In the engine's order.
    fn fast<B: HostBackend>(&self, own: Flat<B>, ready: Option<Mark>) -> Result<Flat<B>, Broken> {
        let length = own.dims()[0];
        self.with_memory::<B>(own, length, |own, sum| {
            let devices = self.processes.devices.as_ref().expect("gradients do not go through the host");
            let ready = ready.map_or_else(|| devices.mark(), Ok)?;
            devices.all_reduce(own, sum, &ready, self.limit)
        })
    }

    /// Shares and the sum are sent in bf16, additions are f32, in the order of the processes.
    fn of_halves<B: HostBackend>(&self, own: Flat<B>) -> Result<Flat<B>, Broken> {
        let add = |shares: Vec<Flat<B>>| {
            let sum =
                shares.into_iter().map(widened::<B>).reduce(|sum, share| sum + share).expect("there are processes");
            sum.cast(FloatDType::BF16)
        };
        let counts = vec![1; self.processes.blocks.len()];
        self.in_pieces::<B>(vec![own.cast(FloatDType::BF16)], counts, FloatDType::BF16, add).map(widened::<B>)
    }

    /// In the order of the tree: of the subtrees' sums or, if they are rounded, of all shares.
    fn ordered<B: HostBackend>(&self, shares: Vec<Flat<B>>, halves: bool) -> Result<Flat<B>, Broken> {
        let (size, hosted) = (self.processes.replicas(), self.processes.hosted());
        let mut slots: Vec<Option<Flat<B>>> = (0..size).map(|_| None).collect();
        slots[hosted.clone()].iter_mut().zip(shares).for_each(|(slot, share)| *slot = Some(share));
        let blocks = self.processes.blocks.iter().cloned();
        let places: Vec<Vec<usize>> = if halves {
            blocks.map(Range::collect).collect()
        } else {
            blocks.map(|block| roots(size, block)).collect()
        };
        if !halves {
            fold(&mut slots, hosted, |left, right| add::<B>(left, right));
        }
        let counts = places.iter().map(Vec::len).collect();
        let finish = |sums: Vec<Flat<B>>| {
            let mut slots: Vec<Option<Flat<B>>> = (0..size).map(|_| None).collect();
            places.concat().into_iter().zip(sums).for_each(|(place, sum)| slots[place] = Some(widened::<B>(sum)));
            folded::<B>(slots)
        };
        self.in_pieces::<B>(slots.into_iter().flatten().collect(), counts, FloatDType::F32, finish)
    }

    /// As `Processes::in_pieces`; `combine` returns a vector of type `result`.
    fn in_pieces<B: HostBackend>(
        &self,
        own: Vec<Flat<B>>,
        counts: Vec<usize>,
        result: FloatDType,
        combine: impl FnOnce(Vec<Flat<B>>) -> Flat<B>,
    ) -> Result<Flat<B>, Broken> {
        let pieces = self.processes.pieces(own[0].dims()[0]);
        let mine = pieces[self.processes.rank()].len();
        let filled = pieces.iter().filter(|piece| !piece.is_empty());
        let cut = |piece: &Range<usize>| {
            own.iter().map(move |vector| vector.clone().slice(piece.clone())).collect::<Vec<_>>()
        };
        let outgoing = Tensor::cat(filled.flat_map(cut).collect(), 0);
        let sent = pieces.iter().map(|piece| own.len() * piece.start..own.len() * piece.end).collect();
        let received: Vec<usize> = counts.iter().map(|count| count * mine).collect();
        let incoming = self.exchanged::<B>(outgoing, sent, received)?;
        let vector = |number: usize| incoming.clone().slice(number * mine..(number + 1) * mine);
        let combined =
            if mine > 0 { combine((0..counts.iter().sum()).map(vector).collect()) } else { incoming.cast(result) };
        let everybody = vec![0..mine; pieces.len()];
        self.exchanged::<B>(combined, everybody, pieces.iter().map(Range::len).collect())
    }

    fn exchanged<B: HostBackend>(
        &self,
        own: Flat<B>,
        sent: Vec<Range<usize>>,
        received: Vec<usize>,
    ) -> Result<Flat<B>, Broken> {
        self.with_memory::<B>(own, received.iter().sum(), |own, all| {
            let devices = self.processes.devices.as_ref().expect("gradients do not go through the host");
            devices.exchange(own, &sent, all, &received, &devices.mark()?, self.limit)
        })
    }

    /// Lets `act` fill a new tensor of `length` elements, of the type of `own`, from that.
    fn with_memory<B: HostBackend>(
        &self,
        own: Flat<B>,
        length: usize,
        act: impl FnOnce(Memory, Memory) -> Result<(), Symptom>,
    ) -> Result<Flat<B>, Broken> {
        let filled = Tensor::empty([length], (&own.device(), own.dtype()));
        let (mut own, mut filled) = (primitive(own), primitive::<B::Below, 1>(filled));
        let hidden = || Symptom("the backend does not show its memory".into());
        self.processes.with_all(self.key, || {
            let [own, filled] = [&mut own, &mut filled].map(|tensor| B::memory(tensor));
            act(own.ok_or_else(hidden)?, filled.ok_or_else(hidden)?)
        })?;
        drop(own);
        Ok(tensor(filled))
    }
}

fn widened<B: HostBackend>(values: Flat<B>) -> Flat<B> {
    values.cast(FloatDType::F32)
}

fn add<B: HostBackend>(left: &mut Flat<B>, right: Flat<B>) {
    let own = std::mem::replace(left, right.clone());
    *left = tensor(B::add(primitive(own), primitive(right)));
}

/// The sum in the tree over all slots.
fn folded<B: HostBackend>(mut slots: Vec<Option<Flat<B>>>) -> Flat<B> {
    let size = slots.len();
    fold(&mut slots, 0..size, |left, right| add::<B>(left, right));
    slots.swap_remove(0).expect("the tree ends in its first slot")
}
