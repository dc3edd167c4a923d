//! The update in parts: every replica updates some of the tensors and gets the others from their replicas, with the
//! same bits, since all have the same sums of gradients. Its optimizer remembers nothing of the others.
//!
//! Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", stage 1. Replicas
//! of one process on a processor always share the work so: they would read and write all weights and momenta on the
//! same memory bus, each for itself; and they get each other's tensors, not copies. `--shard-optimizer` asks for it
//! everywhere.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Tensor;
use kiln_ops::statistics::Payload;
use kiln_ops::{Shared, primitive, tensor, upload, with_values};
use parking_lot::Mutex;

use super::overlap::in_buckets;
use super::sums::{folded, gather_across};
use super::tensors::{joined, parts};
use super::{Broken, Collective, HostBackend, Key, Plan, ReducePrecision};

/// Whether each replica of `collective` updates its share, if nothing else forbids it.
pub(super) fn is_parted<B: HostBackend>(plan: &Plan, collective: &Collective) -> bool {
    // A recorded update is one of all weights.
    let is_free = B::is_processor()
        && !collective.is_distributed()
        && plan.reduce_precision == ReducePrecision::F32
        && !plan.recorded.is_on();
    collective.size() > 1 && (plan.shard_optimizer || is_free)
}

/// The tensors that each of `replicas` updates, by their places: ranges of about equally many elements.
pub(super) fn shares(lengths: &[usize], replicas: usize) -> Vec<Range<usize>> {
    let total: usize = lengths.iter().sum();
    let (mut ends, mut before) = (vec![0], 0);
    for (place, length) in lengths.iter().enumerate() {
        // A tensor belongs to the share that its middle lies in.
        while ends.len() < replicas && (2 * before + length) * replicas >= 2 * total * ends.len() {
            ends.push(place);
        }
        before += length;
    }
    ends.resize(replicas + 1, lengths.len());
    ends.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

pub(super) fn lengths<B: HostBackend>(tensors: &[Tensor<B, 1>]) -> Vec<usize> {
    tensors.iter().map(|tensor| tensor.dims()[0]).collect()
}

type Slices<B> = Vec<Vec<Shared<B>>>;

/// The sums of this replica's share of the tensors of all replicas of this process, in the tree over their ranks; each
/// pair in the memory of its first tensor.
pub fn reduce_scatter<B: HostBackend>(
    collective: &Collective,
    key: Key,
    own: Vec<Tensor<B, 1>>,
    device: &B::Device,
) -> Result<Vec<Tensor<B, 1>>, Broken> {
    let shares = shares(&lengths(&own), collective.size());
    let mut own = own.into_iter().map(|own| B::share(primitive(own)));
    let own: Slices<B> = shares.iter().map(|share| own.by_ref().take(share.len()).collect()).collect();
    // What all have for each; who gets it takes it out, so that it has no other owner.
    let combine = |brought: Vec<Payload>| -> Payload {
        let slices = |part: Payload| Arc::into_inner(part.downcast::<Slices<B>>().expect("all bring tensors"));
        let mut brought: Vec<_> = brought.into_iter().filter_map(slices).map(Vec::into_iter).collect();
        let for_each = shares.iter().map(|_| brought.iter_mut().filter_map(Iterator::next).collect());
        Arc::new(for_each.map(Mutex::new).collect::<Vec<Mutex<Slices<B>>>>())
    };
    let all = collective.meet(key, Arc::new(own), &combine)?.downcast::<Vec<Mutex<Slices<B>>>>();
    let all = all.expect("all get tensors");
    let mine = std::mem::take(&mut *all[collective.rank()].lock());
    let add = |left: Vec<_>, right| left.into_iter().zip(right).map(|(left, right)| B::add(left, right)).collect();
    let sums = folded(mine.into_iter().map(Some).collect(), add);
    Ok(sums.into_iter().map(|sum| tensor(B::adopt(sum, device))).collect())
}

/// The tensors of all replicas, one replica's after the other's: `own` are this replica's share of those of these
/// `lengths`. Replicas that can use each other's tensors get these, others copies.
pub fn all_gather<B: HostBackend>(
    collective: &Collective,
    key: Key,
    own: Vec<Tensor<B, 1>>,
    lengths: &[usize],
    device: &B::Device,
    shares_tensors: bool,
) -> Result<Vec<Tensor<B, 1>>, Broken> {
    if !shares_tensors {
        return gather_copies(collective, key, own, lengths, device);
    }
    let shared = |part: Payload| part.downcast::<Vec<Shared<B>>>().expect("all bring tensors");
    let combine = |brought: Vec<Payload>| -> Payload {
        let all = brought.into_iter().flat_map(|part| Arc::unwrap_or_clone(shared(part)));
        Arc::new(all.collect::<Vec<Shared<B>>>())
    };
    let own: Vec<Shared<B>> = own.into_iter().map(|own| B::share(primitive(own))).collect();
    let all = Arc::unwrap_or_clone(shared(collective.meet(key, Arc::new(own), &combine)?));
    Ok(all.into_iter().map(|one| tensor(B::adopt(one, device))).collect())
}

/// [`all_gather`] of copies: a bucket of each replica's tensors at a time, to save memory.
fn gather_copies<B: HostBackend>(
    collective: &Collective,
    key: Key,
    own: Vec<Tensor<B, 1>>,
    lengths: &[usize],
    device: &B::Device,
) -> Result<Vec<Tensor<B, 1>>, Broken> {
    let buckets = |share: Range<usize>| in_buckets(share, |place| lengths[*place]);
    let buckets: Vec<Vec<Vec<usize>>> = shares(lengths, collective.size()).into_iter().map(buckets).collect();
    let (mut own, mut all) = (own.into_iter(), vec![None; lengths.len()]);
    for round in 0..buckets.iter().map(Vec::len).max().unwrap_or(0) {
        let places: Vec<&[usize]> = buckets.iter().map(|of| of.get(round).map_or(&[][..], |it| it)).collect();
        let lengths_at = |places: &[usize]| places.iter().map(|place| lengths[*place]).collect::<Vec<_>>();
        let counts: Vec<usize> = places.iter().map(|places| lengths_at(places).iter().sum()).collect();
        let bucket: Vec<_> = own.by_ref().take(places[collective.rank()].len()).collect();
        let bucket = if bucket.is_empty() { Tensor::empty([0], device) } else { joined(bucket) };
        let values = gather_across(collective, Key { micro_batch: round, ..key }, bucket, &counts)?;
        let places = places.concat();
        let tensors = apart(values, &lengths_at(&places), device);
        places.iter().zip(tensors).for_each(|(place, tensor)| all[*place] = Some(tensor));
    }
    Ok(all.into_iter().flatten().collect())
}

/// The tensors of these lengths in `values`, one after the other. On a processor each has memory of its own: weights
/// that were parts of a larger vector would be copied in every pass, and the copies kept for the backward pass.
fn apart<B: HostBackend>(values: Tensor<B, 1>, lengths: &[usize], device: &B::Device) -> Vec<Tensor<B, 1>> {
    if !B::is_processor() {
        return parts(values, lengths);
    }
    with_values::<B, _>(tensor(B::share(primitive(values))), |mut values| {
        let mut take = |length: &usize| values.split_off(..*length).expect("there is a value for each element");
        lengths.iter().map(|length| upload(take(length), device)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn every_tensor_has_one_replica_and_the_shares_are_about_equal() {
        assert_eq!(shares(&[4, 4], 2), [0..1, 1..2]);
        assert_eq!(shares(&[1, 1, 1, 1, 8], 2), [0..4, 4..5]);
        assert_eq!(shares(&[8, 1, 1, 1, 1], 2), [0..1, 1..5]);
        assert_eq!(shares(&[5], 3), [0..0, 0..1, 1..1]);
        assert_eq!(shares(&[], 2), [0..0, 0..0]);
        for replicas in 1..12 {
            let lengths: Vec<usize> = (0..40).map(|place| 1 + place * place % 97).collect();
            let (shares, total) = (shares(&lengths, replicas), lengths.iter().sum::<usize>());
            assert_eq!(shares.iter().cloned().flatten().collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
            for share in shares {
                let count: usize = lengths[share].iter().sum();
                assert!(count.abs_diff(total / replicas) <= 97, "{count} of {total} for one of {replicas}");
            }
        }
    }
}
