//! Sums of tensors over the replicas of all processes: additions, and the way to the other processes.
//!
//! Tensors are added where they are. They go to other processes from device to device, if an engine takes them so;
//! otherwise by the host's memory, which is a processor's own: there an engine works on the values in place.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{FloatDType, Tensor, bf16};
use rayon::prelude::*;

use super::collective::Collective;
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::engine::{DeviceEngine, Mark, Symptom};
use super::key::{Broken, Key};
use super::processes::Processes;
use super::sums::Sum;
use crate::ops::statistics::Part;
use crate::ops::{HostOps, Memory, Shared, from_values, primitive, tensor, with_values};

/// A tensor for other threads, and a mark behind the work that computes it, if it goes from device to device.
struct Queued<B: HostOps> {
    values: Shared<B>,
    ready: Option<Mark>,
}

/// The element-wise sum of the tensors of all replicas; `share` is this replica's, of f32, and sent in `precision`. With an
/// engine for devices it is computed before `ready`.
///
/// # Errors
/// Those of [`Collective::meet`].
pub fn sum_across<B: HostBackend>(
    collective: &Collective,
    key: Key,
    share: Tensor<B, 1>,
    ready: Option<Mark>,
    precision: ReducePrecision,
) -> Result<Tensor<B, 1>, Broken> {
    let device = share.device();
    let combine = |parts: Vec<Part>, processes: Option<&Processes>, limit: Duration| {
        let queued = |part: Part| part.downcast::<Queued<B>>().expect("all bring tensors of one backend");
        let owned = |part| Arc::into_inner(queued(part)).expect("a share has one owner");
        let shares: Vec<Queued<B>> = parts.into_iter().map(owned).collect();
        // A sum of several shares is computed after all of their marks.
        let ready = shares[0].ready.clone().filter(|_| shares.len() == 1);
        let mut shares: Vec<Flat<B>> = shares.into_iter().map(|share| Flat(tensor(share.values))).collect();
        let (length, device) = (shares[0].length(), shares[0].0.device());
        if shares.iter().any(|share| share.length() != length) {
            return Err(Broken::Replica(format!("replicas brought different numbers of values to the {key}")));
        }
        shares = shares.into_iter().map(|Flat(share)| Flat(moved::<B>(share, &device))).collect();
        if precision == ReducePrecision::Bf16 {
            shares = shares.into_iter().map(Flat::rounded).collect();
        }
        let Flat(sum) = Sum { processes, key, limit, ready }.of(shares, precision)?;
        Ok(Arc::new(primitive(sum)) as Part)
    };
    let share = Queued::<B> { values: B::share(primitive(share)), ready };
    let sum = collective.meet_processes(key, Arc::new(share), combine)?;
    let sum = sum.downcast::<Shared<B>>().expect("the sum is a tensor");
    let sum = moved::<B>(tensor(Arc::unwrap_or_clone(sum)), &device);
    Ok(tensor(B::adopt(primitive(sum), &device)))
}

/// The tensor on `device`: by the host, if this backend's devices do not reach each other.
fn moved<B: HostBackend>(x: Tensor<B::Below, 1>, device: &B::Device) -> Tensor<B::Below, 1> {
    match x.device() == *device {
        true => x,
        false if B::CAN_SHARE => x.to_device(device),
        false => from_values(with_values::<B, _>(x, |values| values.to_vec()), device),
    }
}

/// A flat tensor of f32 below Burn's fusion.
pub(super) struct Flat<B: HostOps>(Tensor<B::Below, 1>);

impl<B: HostBackend> Flat<B> {
    pub(super) fn length(&self) -> usize {
        self.0.dims()[0]
    }

    pub(super) fn part(&self, range: Range<usize>) -> Self {
        Self(self.0.clone().slice(range))
    }

    /// The first range of every vector, then the second one of every vector, and so on.
    pub(super) fn parts(vectors: &[Self], ranges: &[Range<usize>]) -> Self {
        let part = |range: &Range<usize>| vectors.iter().map(|vector| vector.part(range.clone()).0).collect::<Vec<_>>();
        Self(Tensor::cat(ranges.iter().flat_map(part).collect(), 0))
    }

    pub(super) fn add(self, other: Self) -> Self {
        Self(tensor(B::add(primitive(self.0), primitive(other.0))))
    }

    /// The values rounded to the nearest bf16.
    fn rounded(self) -> Self {
        let mut x = primitive(self.0);
        if let Some(values) = B::values_mut(&mut x) {
            values.par_iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
            return Self(tensor(x));
        }
        Self(tensor::<B::Below, 1>(x).cast(FloatDType::BF16).cast(FloatDType::F32))
    }

    /// The sum over all processes, in the engine's order.
    pub(super) fn all_reduce(self, sum: &Sum, processes: &Processes) -> Result<Self, Broken> {
        let &Sum { key, limit, .. } = sum;
        if processes.tensors.is_some() {
            let length = self.length();
            let all = filled::<B>(sum, processes, self.0, length, |devices, [own, all]| {
                let ready = sum.ready.clone().map_or_else(|| devices.mark(), Ok)?;
                devices.all_reduce(own, all, &ready, limit)
            });
            return all.map(Self);
        }
        let (device, mut x) = (self.0.device(), primitive(self.0));
        if let Some(values) = B::values_mut(&mut x) {
            processes.all_reduce(key, values, limit)?;
            return Ok(Self(tensor(x)));
        }
        let mut values = with_values::<B, _>(tensor(x), |values| values.to_vec());
        processes.all_reduce(key, &mut values, limit)?;
        Ok(Self(from_values(values, &device)))
    }

    /// Sends the range `sent[i]` of this vector to process `i` and returns the `received[i]` values of each process `i`,
    /// in the order of ranks. The ranges follow each other; without them every process gets the whole vector.
    pub(super) fn exchange(
        self,
        sum: &Sum,
        processes: &Processes,
        sent: Option<Vec<Range<usize>>>,
        received: Vec<usize>,
        precision: ReducePrecision,
    ) -> Result<Self, Broken> {
        let &Sum { key, limit, .. } = sum;
        let halves = precision == ReducePrecision::Bf16;
        if processes.tensors.is_some() {
            let sent = sent.unwrap_or_else(|| vec![0..self.length(); received.len()]);
            let own = if halves { self.rounded().0.cast(FloatDType::BF16) } else { self.0 };
            let all = filled::<B>(sum, processes, own, received.iter().sum(), |devices, [own, all]| {
                devices.exchange(own, &sent, all, &received, &devices.mark()?, limit)
            })?;
            return Ok(Self(all.cast(FloatDType::F32)));
        }
        let (device, sent) = (self.0.device(), sent.map(|sent| sent.iter().map(Range::len).collect()));
        let all = with_values::<B, _>(self.0, |values| {
            if !halves {
                return processes.exchange(key, values, sent, received, limit);
            }
            let halves: Vec<bf16> = values.par_iter().map(|value| bf16::from_f32(*value)).collect();
            let all = processes.exchange(key, &halves, sent, received, limit)?;
            Ok(all.par_iter().map(|half| half.to_f32()).collect())
        })?;
        Ok(Self(from_values(all, &device)))
    }
}

/// Lets `act` fill a new tensor of `length` elements, of the type of `own`, from that.
fn filled<B: HostBackend>(
    sum: &Sum,
    processes: &Processes,
    own: Tensor<B::Below, 1>,
    length: usize,
    act: impl FnOnce(&dyn DeviceEngine, [Memory; 2]) -> Result<(), Symptom>,
) -> Result<Tensor<B::Below, 1>, Broken> {
    let filled = Tensor::empty([length], (&own.device(), own.dtype()));
    let (mut own, mut filled) = (primitive(own), primitive::<B::Below, 1>(filled));
    let hidden = || Symptom("the backend does not show its memory".into());
    let devices = processes.tensors.as_deref().expect("tensors do not go through the host");
    processes.with_all(sum.key, || {
        let [own, filled] = [&mut own, &mut filled].map(|tensor| B::memory(tensor));
        act(devices, [own.ok_or_else(hidden)?, filled.ok_or_else(hidden)?])
    })?;
    drop(own);
    Ok(tensor(filled))
}
