//! Flat tensors in collectives of processes: additions, and the way to the other processes.
//!
//! Tensors are added where they are. They go to other processes from device to device, if an engine takes them so;
//! otherwise by the host's memory, which is a processor's own: there an engine works on the values in place.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor, bf16};
use kiln_kernels::{Activation, LEAST_ROUNDED};
use kiln_ops::{HostOps, Memory, Shared, from_values, primitive, tensor, with_values};
use rayon::prelude::*;

use super::{Broken, DeviceEngine, HostBackend, Key, Mark, Peers, ReducePrecision, Symptom};

/// A collective of this process with the others or, if tensors do not go through the host, of this device.
pub(super) struct Exchange<'a> {
    pub(super) peers: &'a Peers,
    pub(super) key: Key,
    pub(super) limit: Duration,
    /// Behind the work of a device that computes the only share of this process.
    pub(super) ready: Option<Mark>,
}

/// The tensor on `device`: by the host, if this backend's devices do not reach each other.
pub(super) fn moved<B: HostBackend>(x: Tensor<B::Below, 1>, device: &B::Device) -> Tensor<B::Below, 1> {
    match x.device() == *device {
        true => x,
        false if B::CAN_SHARE => x.to_device(device),
        false => from_values(with_values::<B, _>(x, |values| values.to_vec()), device),
    }
}

/// The tensors one after the other; a single one is not copied.
pub(super) fn joined<B: Backend>(mut tensors: Vec<Tensor<B, 1>>) -> Tensor<B, 1> {
    if tensors.len() == 1 { tensors.swap_remove(0) } else { Tensor::cat(tensors, 0) }
}

/// The tensors of these lengths in a flat one; the inverse of [`joined`].
pub(super) fn parts<B: Backend>(joined: Tensor<B, 1>, lengths: &[usize]) -> Vec<Tensor<B, 1>> {
    let mut end = 0;
    let mut part = |length: &usize| {
        end += length;
        joined.clone().slice(end - length..end)
    };
    if lengths.len() == 1 { vec![joined] } else { lengths.iter().map(&mut part).collect() }
}

/// A flat tensor of f32 below Burn's fusion.
pub(super) struct Flat<B: HostOps>(pub(super) Tensor<B::Below, 1>);

impl<B: HostBackend> Flat<B> {
    pub(super) fn length(&self) -> usize {
        self.0.dims()[0]
    }

    /// Another one of `length` elements, with any values.
    fn empty(&self, length: usize) -> Tensor<B::Below, 1> {
        Tensor::empty([length], (&self.0.device(), self.0.dtype()))
    }

    pub(super) fn part(&self, range: Range<usize>) -> Self {
        Self(self.0.clone().slice(range))
    }

    /// The first range of every vector, then the second one of every vector, and so on; the ranges cover a vector.
    pub(super) fn parts(mut vectors: Vec<Self>, ranges: &[Range<usize>]) -> Self {
        if vectors.len() == 1 {
            return vectors.swap_remove(0);
        }
        let part = |range: &Range<usize>| vectors.iter().map(|vector| vector.part(range.clone()).0).collect::<Vec<_>>();
        Self(joined(ranges.iter().flat_map(part).collect()))
    }

    pub(super) fn add(self, other: Self) -> Self {
        Self(tensor(B::add(primitive(self.0), primitive(other.0))))
    }

    /// The values rounded to the nearest bf16.
    pub(super) fn rounded(self) -> Self {
        Self(tensor(B::rounded(primitive(self.0))))
    }

    /// The sum over all processes, in the engine's order; in `place`, if it was made before `by.ready`.
    pub(super) fn all_reduce(self, by: &Exchange, place: Option<Tensor<B::Below, 1>>) -> Result<Self, Broken> {
        let &Exchange { peers, key, limit, .. } = by;
        if peers.tensors.is_some() {
            let sum = place.unwrap_or_else(|| self.empty(self.length()));
            let all = filled::<B>(by, by.ready.clone(), self.0, sum, |devices, [own, all], ready| {
                devices.all_reduce(own, all, ready, limit)
            });
            return all.map(Self);
        }
        let (device, mut x) = (self.0.device(), primitive(self.0));
        if let Some(values) = B::values_mut(&mut x) {
            peers.all_reduce(key, values, limit)?;
            return Ok(Self(tensor(x)));
        }
        let mut values = with_values::<B, _>(tensor(x), |values| values.to_vec());
        peers.all_reduce(key, &mut values, limit)?;
        Ok(Self(from_values(values, &device)))
    }

    /// Sends the range `sent[i]` of this vector to process `i` and returns the `received[i]` values of each process
    /// `i`, in the order of ranks. The ranges follow each other; without them every process gets the whole vector.
    pub(super) fn exchange(
        self,
        by: &Exchange,
        sent: Option<Vec<Range<usize>>>,
        received: Vec<usize>,
        precision: ReducePrecision,
    ) -> Result<Self, Broken> {
        let &Exchange { peers, key, limit, .. } = by;
        let halves = precision == ReducePrecision::Bf16;
        if peers.tensors.is_some() {
            let sent = sent.unwrap_or_else(|| vec![0..self.length(); received.len()]);
            let own = if halves { self.rounded().0.cast(FloatDType::BF16) } else { self.0 };
            let own = Self(own);
            let all = own.empty(received.iter().sum());
            let all = filled::<B>(by, None, own.0, all, |devices, [own, all], ready| {
                devices.exchange(own, &sent, all, &received, ready, limit)
            })?;
            return Ok(Self(all.cast(FloatDType::F32)));
        }
        let (device, sent) = (self.0.device(), sent.map(|sent| sent.iter().map(Range::len).collect()));
        let all = with_values::<B, _>(self.0, |values| {
            if !halves {
                return peers.exchange(key, values, sent, received, limit);
            }
            let halves: Vec<bf16> =
                values.par_iter().with_min_len(LEAST_ROUNDED).map(|value| bf16::of(*value)).collect();
            let all = peers.exchange(key, &halves, sent, received, limit)?;
            Ok(all.par_iter().with_min_len(LEAST_ROUNDED).map(|half| half.widened()).collect())
        })?;
        Ok(Self(from_values(all, &device)))
    }

    /// Sends the vector to the second of two processes.
    pub(super) fn send(self, by: &Exchange) -> Result<(), Broken> {
        let sent = [0..0, 0..self.length()];
        let act = |devices: &dyn DeviceEngine, [own, none]: [Memory; 2], ready: &Mark| {
            devices.exchange(own, &sent, none, &[0, 0], ready, by.limit)
        };
        let nothing = self.empty(1);
        filled::<B>(by, by.ready.clone(), self.0, nothing, act).map(drop)
    }

    /// The `length` values that the first of two processes sends.
    pub(super) fn receive(by: &Exchange, length: usize, device: &B::Device) -> Result<Self, Broken> {
        let [none, all] = [1, length].map(|length| Tensor::empty([length], (device, DType::F32)));
        let act = |devices: &dyn DeviceEngine, [none, all]: [Memory; 2], ready: &Mark| {
            devices.exchange(none, &[0..0, 0..0], all, &[length, 0], ready, by.limit)
        };
        filled::<B>(by, None, none, all, act).map(Self)
    }
}

/// Lets `act` fill the tensor `filled`, which nobody else has, from `own`, after the mark `ready` or all queued work.
fn filled<B: HostBackend>(
    &Exchange { peers, key, .. }: &Exchange,
    ready: Option<Mark>,
    own: Tensor<B::Below, 1>,
    filled: Tensor<B::Below, 1>,
    act: impl FnOnce(&dyn DeviceEngine, [Memory; 2], &Mark) -> Result<(), Symptom>,
) -> Result<Tensor<B::Below, 1>, Broken> {
    let (mut own, mut filled) = (primitive(own), primitive::<B::Below, 1>(filled));
    let hidden = || Symptom("the backend does not show its memory".into());
    let devices = peers.tensors.as_deref().expect("tensors do not go through the host");
    peers.with_all(key, || {
        let ready = ready.map_or_else(|| queued::<B, 2>(devices, [&mut own, &mut filled])?(), Ok)?;
        let [own, filled] = [&mut own, &mut filled].map(|tensor| B::memory(tensor));
        act(devices, [own.ok_or_else(hidden)?, filled.ok_or_else(hidden)?], &ready)
    })?;
    drop(own);
    Ok(tensor(filled))
}

/// Where an engine is called: waits for the work that was queued when this was made, or gives its mark.
pub(super) type Ready = Box<dyn FnOnce() -> Result<Mark, Symptom> + Send + Sync>;

/// What an engine waits for that reads or writes these tensors, of one device: the work that is queued now.
pub(super) fn queued<B: HostBackend, const N: usize>(
    devices: &dyn DeviceEngine,
    tensors: [&mut Shared<B>; N],
) -> Result<Ready, Symptom> {
    if let Some(wait) = B::fence(tensors) {
        return Ok(Box::new(move || wait().map(|()| Arc::new(()) as Mark).map_err(Symptom)));
    }
    let mark = devices.mark()?;
    Ok(Box::new(move || Ok(mark)))
}
