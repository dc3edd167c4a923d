//! Sums of tensors over the replicas of all processes, without the host: the bits are those of vectors on the host,
//! but for sums in the order of the engine.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{FloatDType, Tensor};

use super::collective::Collective;
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::engine::{DeviceEngine, Mark, Symptom};
use super::key::{Broken, Key};
use super::processes::Processes;
use super::sums::{Sum, Vector};
use crate::ops::statistics::Part;
use crate::ops::{HostOps, Memory, Shared, primitive, tensor};

/// A tensor for other threads, and a mark behind the work that computes it.
struct Queued<B: HostOps> {
    values: Shared<B>,
    ready: Mark,
}

/// A flat tensor of f32 below Burn's fusion.
struct Flat<B: HostOps>(Tensor<B::Below, 1>);

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
        let owned = |part| Arc::into_inner(queued(part)).expect("a share has one owner");
        let shares: Vec<Queued<B>> = parts.into_iter().map(owned).collect();
        // A sum of several shares is computed after all of their marks.
        let ready = (shares.len() == 1).then(|| shares[0].ready.clone());
        let share =
            |share: Queued<B>| Flat(tensor::<B::Below, 1>(share.values).cast(sent_as(precision)).cast(FloatDType::F32));
        let sum = Sum { processes, key, limit, ready };
        let Flat(sum) = sum.of::<Flat<B>>(shares.into_iter().map(share).collect(), precision)?;
        Ok(Arc::new(primitive(sum)) as Part)
    };
    let share = Queued::<B> { values: B::share(primitive(share)), ready };
    let sum = collective.meet_devices(key, Arc::new(share), combine)?;
    let sum = sum.downcast::<Shared<B>>().expect("the sum is a tensor");
    Ok(tensor(B::adopt(Arc::unwrap_or_clone(sum), &device)))
}

fn sent_as(precision: ReducePrecision) -> FloatDType {
    if precision == ReducePrecision::Bf16 { FloatDType::BF16 } else { FloatDType::F32 }
}

/// Lets `act` fill a new tensor of `length` elements, of the type of `own`, from that.
fn filled<B: HostBackend>(
    &Sum { processes, key, .. }: &Sum,
    own: Tensor<B::Below, 1>,
    length: usize,
    act: impl FnOnce(&dyn DeviceEngine, [Memory; 2]) -> Result<(), Symptom>,
) -> Result<Tensor<B::Below, 1>, Broken> {
    let filled = Tensor::empty([length], (&own.device(), own.dtype()));
    let (mut own, mut filled) = (primitive(own), primitive::<B::Below, 1>(filled));
    let hidden = || Symptom("the backend does not show its memory".into());
    let devices = processes.tensors.as_deref().expect("tensors do not go through the host");
    processes.with_all(key, || {
        let [own, filled] = [&mut own, &mut filled].map(|tensor| B::memory(tensor));
        act(devices, [own.ok_or_else(hidden)?, filled.ok_or_else(hidden)?])
    })?;
    drop(own);
    Ok(tensor(filled))
}

impl<B: HostBackend> Vector for Flat<B> {
    fn length(&self) -> usize {
        self.0.dims()[0]
    }

    fn parts(vectors: &[Self], ranges: &[Range<usize>]) -> Self {
        let part = |range: &Range<usize>| {
            vectors.iter().map(|vector| vector.0.clone().slice(range.clone())).collect::<Vec<_>>()
        };
        Self(Tensor::cat(ranges.iter().flat_map(part).collect(), 0))
    }

    fn add(self, other: Self) -> Self {
        Self(tensor(B::add(primitive(self.0), primitive(other.0))))
    }

    fn all_reduce(self, sum: &Sum) -> Result<Self, Broken> {
        let length = self.length();
        let all = filled::<B>(sum, self.0, length, |devices, [own, all]| {
            let ready = sum.ready.clone().map_or_else(|| devices.mark(), Ok)?;
            devices.all_reduce(own, all, &ready, sum.limit)
        });
        all.map(Self)
    }

    fn exchange(
        self,
        sum: &Sum,
        sent: Option<Vec<Range<usize>>>,
        received: Vec<usize>,
        precision: ReducePrecision,
    ) -> Result<Self, Broken> {
        let sent = sent.unwrap_or_else(|| vec![0..self.length(); received.len()]);
        let own = self.0.cast(sent_as(precision));
        let all = filled::<B>(sum, own, received.iter().sum(), |devices, [own, all]| {
            devices.exchange(own, &sent, all, &received, &devices.mark()?, sum.limit)
        })?;
        Ok(Self(all.cast(FloatDType::F32)))
    }
}
