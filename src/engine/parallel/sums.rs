//! Sums of tensors over the replicas of all processes, in their order; `tensors.rs` adds and sends.
//!
//! Sums have two modes. The fast one adds the replicas of each process and leaves the rest to the engine, whose order
//! depends on the number of processes. The ordered one exchanges the subtree sums of all processes and finishes the
//! fixed tree, so that the bits do not depend on the placement; it moves the same number of bytes if each process hosts
//! whole subtrees, and more otherwise. Shares that are sent in bf16 were rounded before; additions are f32.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Tensor;
use kiln_ops::statistics::Payload;
use kiln_ops::{HostOps, Shared, primitive, tensor};

use super::tensors::{Exchange, Flat, Ready, joined, moved, queued};
use super::tree::{fold, roots};
use super::{Broken, Collective, DeviceEngine, HostBackend, Key, Peers, ReducePrecision, Symptom};

/// A replica's share of a sum: some flat tensors, one after the other.
pub struct Share<B: HostOps> {
    values: Shared<B>,
    /// Of the sum, if an engine takes it from device to device, and in its own order: memory, and the end of all work
    /// queued when that was taken: the work that computes the share, and work of the memory's previous owner.
    destination: Option<(Shared<B>, Ready)>,
    device: B::Device,
}

impl<B: HostBackend> Share<B> {
    /// The share of these tensors of f32, whose computation is queued.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(collective: &Collective, tensors: Vec<Tensor<B, 1>>) -> Result<Self, Broken> {
        let whole = joined(tensors);
        let (device, form) = (whole.device(), (whole.dims(), whole.dtype()));
        let mut values = B::share(primitive(whole));
        let beside = |devices: &dyn DeviceEngine| -> Result<_, Symptom> {
            let mut sum = B::share(primitive(Tensor::<B, 1>::empty(form.0, (&device, form.1))));
            let ready = queued::<B, 2>(devices, [&mut values, &mut sum])?;
            Ok((sum, ready))
        };
        let destination = collective.devices().filter(|_| !collective.is_ordered()).map(beside).transpose();
        let destination = destination.map_err(|symptom| Broken::Replica(symptom.0))?;
        Ok(Self { values, destination, device })
    }

    /// The element-wise sum of all replicas' shares, which are sent in `precision`.
    pub fn all_reduce(
        self,
        collective: &Collective,
        key: Key,
        precision: ReducePrecision,
    ) -> Result<Tensor<B, 1>, Broken> {
        let device = self.device.clone();
        let combine = |parts: Vec<Payload>, peers: Option<&Peers>, limit: Duration| {
            let share = |part: Payload| part.downcast::<Self>().expect("all bring tensors of one backend");
            let owned = |part| Arc::into_inner(share(part)).expect("a share has one owner");
            let mut shares: Vec<Self> = parts.into_iter().map(owned).collect();
            // A sum of several shares is computed after all of their marks.
            let destination = if shares.len() == 1 { shares[0].destination.take() } else { None };
            let mut shares: Vec<Flat<B>> = shares.into_iter().map(|share| Flat(tensor(share.values))).collect();
            let (length, device) = (shares[0].length(), shares[0].0.device());
            if shares.iter().any(|share| share.length() != length) {
                return Err(Broken::Replica(format!("replicas brought different numbers of values to the {key}")));
            }
            shares = shares.into_iter().map(|Flat(share)| Flat(moved::<B>(share, &device))).collect();
            if precision == ReducePrecision::Bf16 {
                shares = shares.into_iter().map(Flat::rounded).collect();
            }
            let (place, ready) = destination.map(|(sum, ready)| (tensor(sum), ready)).unzip();
            let ready = ready.map(|ready: Ready| ready()).transpose();
            let ready = ready.map_err(|symptom| Broken::Replica(symptom.0))?;
            let by = peers.map(|peers| Exchange { peers, key, limit, ready });
            let Flat(sum) = sum(by.as_ref(), shares, place, precision)?;
            Ok(Arc::new(primitive(sum)) as Payload)
        };
        let sum = collective.meet_processes(key, Arc::new(self), combine)?;
        let sum = sum.downcast::<Shared<B>>().expect("the sum is a tensor");
        let sum = moved::<B>(tensor(Arc::unwrap_or_clone(sum)), &device);
        Ok(tensor(B::adopt(primitive(sum), &device)))
    }
}

/// The values of all replicas, one after the other; replica `i` has `counts[i]` of them, and this one `share`.
pub(super) fn gather_across<B: HostBackend>(
    collective: &Collective,
    key: Key,
    share: Tensor<B, 1>,
    counts: &[usize],
) -> Result<Tensor<B, 1>, Broken> {
    let device = share.device();
    let combine = |parts: Vec<Payload>, peers: Option<&Peers>, limit: Duration| {
        let shared = |part: Payload| Arc::unwrap_or_clone(part.downcast::<Shared<B>>().expect("all bring tensors"));
        let shares: Vec<Flat<B>> = parts.into_iter().map(|part| Flat(tensor(shared(part)))).collect();
        let device = shares[0].0.device();
        let here = joined(shares.into_iter().map(|Flat(share)| moved::<B>(share, &device)).collect());
        let Some(peers) = peers else { return Ok(Arc::new(primitive(here)) as Payload) };
        let received = peers.blocks.iter().map(|block| counts[block.clone()].iter().sum()).collect();
        let by = Exchange { peers, key, limit, ready: None };
        let Flat(all) = Flat::<B>(here).exchange(&by, None, received, ReducePrecision::F32)?;
        Ok(Arc::new(primitive(all)))
    };
    let all = collective.meet_processes(key, Arc::new(B::share(primitive(share))), combine)?;
    let all = all.downcast::<Shared<B>>().expect("the values are a tensor");
    let all = moved::<B>(tensor(Arc::unwrap_or_clone(all)), &device);
    Ok(tensor(B::adopt(primitive(all), &device)))
}

/// The sum; `shares` are those of this process's replicas.
fn sum<B: HostBackend>(
    by: Option<&Exchange>,
    shares: Vec<Flat<B>>,
    place: Option<Tensor<B::Below, 1>>,
    precision: ReducePrecision,
) -> Result<Flat<B>, Broken> {
    let here = |shares: Vec<Flat<B>>| folded(shares.into_iter().map(Some).collect(), Flat::add);
    let Some(by) = by else { return Ok(here(shares)) };
    let halves = precision == ReducePrecision::Bf16;
    let (size, hosted, blocks) = (by.peers.replicas(), by.peers.hosted(), &by.peers.blocks);
    if !by.peers.ordered {
        let own = here(shares);
        let in_order = |sums: Vec<Flat<B>>| sums.into_iter().reduce(Flat::add).expect("there are processes");
        let counts = vec![1; blocks.len()];
        return if halves {
            in_pieces(by, vec![own], counts, [precision; 2], in_order)
        } else {
            own.all_reduce(by, place)
        };
    }
    let mut slots = placed(size, hosted.clone(), shares);
    if !halves {
        fold(&mut slots, hosted, Flat::add);
    }
    // Sums are not rounded: of halves all shares are sent.
    let place = |block: &Range<usize>| if halves { block.clone().collect() } else { roots(size, block.clone()) };
    let places: Vec<Vec<usize>> = blocks.iter().map(place).collect();
    let finish = |sums| folded(placed(size, places.concat(), sums), Flat::add);
    let (own, counts) = (slots.into_iter().flatten().collect(), places.iter().map(Vec::len).collect());
    in_pieces(by, own, counts, [precision, ReducePrecision::F32], finish)
}

/// Combines the vectors of all processes, in the order of ranks: every process combines one piece of all of them and
/// sends it to the others. `own` are this process's vectors, process `i` has `counts[i]`; all have the same length.
/// Each vector is sent once in the first type, and the result in the second one, whatever the number of processes.
fn in_pieces<B: HostBackend>(
    by: &Exchange,
    own: Vec<Flat<B>>,
    counts: Vec<usize>,
    [shared, result]: [ReducePrecision; 2],
    combine: impl FnOnce(Vec<Flat<B>>) -> Flat<B>,
) -> Result<Flat<B>, Broken> {
    let (length, size) = (own[0].length(), by.peers.blocks.len());
    let piece = |process| process * length / size..(process + 1) * length / size;
    let pieces: Vec<Range<usize>> = (0..size).map(piece).collect();
    let mine = pieces[by.peers.rank].len();
    let filled: Vec<_> = pieces.iter().filter(|piece| !piece.is_empty()).cloned().collect();
    let sent = pieces.iter().map(|piece| own.len() * piece.start..own.len() * piece.end).collect();
    let received = counts.iter().map(|count| count * mine).collect();
    let incoming = Flat::parts(own, &filled).exchange(by, Some(sent), received, shared)?;
    let part = |number| incoming.part(number * mine..(number + 1) * mine);
    let combined = if mine > 0 { combine((0..counts.iter().sum()).map(part).collect()) } else { incoming };
    combined.exchange(by, None, pieces.iter().map(Range::len).collect(), result)
}

/// Empty slots but for those in `places`, which hold `values`.
fn placed<V>(size: usize, places: impl IntoIterator<Item = usize>, values: Vec<V>) -> Vec<Option<V>> {
    let mut slots: Vec<Option<V>> = (0..size).map(|_| None).collect();
    places.into_iter().zip(values).for_each(|(place, value)| slots[place] = Some(value));
    slots
}

/// The sum in the tree over all slots.
pub(super) fn folded<V>(mut slots: Vec<Option<V>>, add: impl FnMut(V, V) -> V) -> V {
    let size = slots.len();
    fold(&mut slots, 0..size, add);
    slots.swap_remove(0).expect("the tree ends in its first slot")
}
