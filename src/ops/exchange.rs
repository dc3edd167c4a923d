//! The way of synchronised batch-norm's statistics to all replicas: in f64 through the host on a processor, in f32 on
//! the device elsewhere.
//!
//! Replicas that share a device hand their tensors over. Those of several devices or processes send them from device to
//! device or through the host, and each combines all of them on its own device. Either way the operations are the same,
//! in the order of the replicas, and below Burn's fusion, whose kernels depend on the operations around them: so the
//! bits do not depend on the placement.

use std::sync::Arc;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorData, TensorMetadata};

use super::host::{HostOps, Shared};
use super::statistics::{Direction, Payload, Synchronized};
use super::traffic::{reading, writing};
use super::{primitive, tensor};

/// Mean and sum of squared deviations, `[channels]`, over the batch of the whole group, and its number of values per
/// channel; `own` are those of this replica.
pub(super) fn moments<B: HostOps>(
    sync: &Synchronized,
    count: f64,
    own: [FloatTensor<B>; 2],
) -> (f64, [FloatTensor<B>; 2]) {
    let device = B::float_device(&own[0]);
    if B::is_processor() {
        let own = [vec![count]].into_iter().chain(own.map(read::<B>)).flatten().collect();
        let total = sync.total(Direction::Forward, own);
        let (means, m2) = total[1..].split_at(total.len() / 2);
        return (total[0], [means, m2].map(|values| write::<B>(values, &device)));
    }
    let total = total::<B>(sync, Direction::Forward, count, own);
    (total.count, total.values.map(|values| B::adopt(values, &device)))
}

/// The sums of the whole group, `[channels]`; `own` are those of this replica.
pub(super) fn sums<B: HostOps>(sync: &Synchronized, own: [FloatTensor<B>; 2]) -> [FloatTensor<B>; 2] {
    let device = B::float_device(&own[0]);
    if B::is_processor() {
        let total = sync.total(Direction::Backward, own.into_iter().flat_map(read::<B>).collect());
        let (first, second) = total.split_at(total.len() / 2);
        return [first, second].map(|values| write::<B>(values, &device));
    }
    total::<B>(sync, Direction::Backward, 0.0, own).values.map(|values| B::adopt(values, &device))
}

/// A count is sent in such units and a rest: both are exact in f32, up to 2^44 values.
const UNIT: f64 = (1 << 20) as f64;

/// The statistics of one replica or of several.
#[derive(Clone)]
struct Share<B: HostOps> {
    /// Values per channel; 0 for a replica without samples, and in the backward pass.
    count: f64,
    /// Means and sums of squared deviations, or two sums, `[channels]`.
    values: [Shared<B>; 2],
}

/// The statistics of all replicas on this replica's device.
fn total<B: HostOps>(sync: &Synchronized, direction: Direction, count: f64, own: [FloatTensor<B>; 2]) -> Share<B> {
    let device = B::float_device(&own[0]);
    let mut own = Share::<B> { count, values: own.map(B::share) };
    if !sync.is_present() {
        own = Share::new(0.0, own.tensors().map(|values| values.zeros_like()));
    }
    let shared = |part: &Payload| part.downcast_ref::<Share<B>>().expect("all replicas have the same backend").clone();
    let combine = |parts: Vec<Payload>| -> Payload {
        let first = tensor::<B::Below, 1>(shared(&parts[0]).values[0].clone()).device();
        Arc::new(combined(direction, parts.iter().map(|part| shared(part).moved(&first))))
    };
    if let Some(total) = sync.group.meet(sync.layer, direction, Arc::new(own.clone()), &combine) {
        return shared(&total);
    }
    let own = own.to_tensor(direction);
    let (length, is_forward) = (own.dims()[0], direction == Direction::Forward);
    let channels = length / 2 - usize::from(is_forward);
    let own = primitive::<B::Below, 1>(own);
    let counts = |values: Vec<f64>| values.chunks(length).map(|of| of[length - 2] * UNIT + of[length - 1]).collect();
    let (all, counts): (_, Vec<f64>) = match sync.group.exchange(sync.layer, direction, Arc::new(own.clone())) {
        Some(all) => {
            let all = all.downcast_ref::<Shared<B>>().expect("all replicas have the same backend").clone();
            // A read would wait for the device, in every layer.
            let each = count / sync.samples[sync.replica].max(1) as f64;
            let expected: Vec<f64> = sync.samples.iter().map(|samples| *samples as f64 * each).collect();
            if is_forward {
                sync.group.agree(sync.layer, each, &|| counts(read::<B::Below>(all.clone())) == expected);
            }
            (tensor::<B::Below, 1>(all), expected)
        }
        None => {
            let all = sync.group.gather(sync.layer, direction, read::<B::Below>(own), |all| all).concat();
            (tensor(write::<B::Below>(&all, &device)), if is_forward { counts(all) } else { Vec::new() })
        }
    };
    let share = |replica: usize| {
        let start = replica * length;
        let part = |number| all.clone().slice(start + number * channels..start + (number + 1) * channels);
        Share::new(if is_forward { counts[replica] } else { 0.0 }, [part(0), part(1)])
    };
    combined(direction, (0..all.dims()[0] / length).map(share))
}

fn combined<B: HostOps>(direction: Direction, shares: impl Iterator<Item = Share<B>>) -> Share<B> {
    let pair = match direction {
        Direction::Forward => Share::with_moments,
        Direction::Backward => Share::with_sums,
    };
    shares.reduce(pair).expect("a group has a replica")
}

impl<B: HostOps> Share<B> {
    fn with_moments(self, other: Self) -> Self {
        match [self.count, other.count] {
            [_, 0.0] => self,
            [0.0, _] => other,
            counts => Self { count: counts[0] + counts[1], values: B::add_moments(self.values, other.values, counts) },
        }
    }

    fn with_sums(self, other: Self) -> Self {
        let ([first, second], [other_first, other_second]) = (self.tensors(), other.tensors());
        Self::new(0.0, [first + other_first, second + other_second])
    }

    /// On another device, where devices have tensors in common; elsewhere all shares are on one.
    fn moved(self, device: &B::Device) -> Self {
        let moved = |values| if B::CAN_SHARE { B::share(B::adopt(values, device)) } else { values };
        Self { count: self.count, values: self.values.map(moved) }
    }

    fn tensors(self) -> [Tensor<B::Below, 1>; 2] {
        self.values.map(tensor)
    }

    fn new(count: f64, values: [Tensor<B::Below, 1>; 2]) -> Self {
        Self { count, values: values.map(primitive) }
    }

    /// As sent to other devices: both tensors, and in the forward pass the count in two parts, each of which f32 holds.
    fn to_tensor(&self, direction: Direction) -> Tensor<B::Below, 1> {
        let both = self.clone().tensors();
        let count = [(self.count / UNIT).floor(), self.count % UNIT];
        let number = |value: f64| Tensor::full([1], value, (&both[0].device(), DType::F32));
        let count = (direction == Direction::Forward).then(|| count.map(number));
        Tensor::cat(both.iter().cloned().chain(count.into_iter().flatten()).collect(), 0)
    }
}

/// Device to host, as f64. Blocks until the device is done.
fn read<B: Backend>(values: FloatTensor<B>) -> Vec<f64> {
    let _copy = reading(values.shape().num_elements(), values.dtype());
    #[expect(clippy::disallowed_methods, reason = "statistics that cannot stay on the device")]
    let data = burn::tensor::read_sync(B::float_into_data(values)).expect("a device that computes can be read");
    data.iter::<f64>().collect()
}

/// Host to device, rounded to f32.
fn write<B: Backend>(values: &[f64], device: &B::Device) -> FloatTensor<B> {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let length = values.len();
    let _copy = writing(length, DType::F32);
    B::float_from_data(TensorData::new(values, [length]), device)
}
