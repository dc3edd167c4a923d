//! Tensors on their way to a worker of another process: from device to device, or through the host's memory.
//!
//! Over NCCL, only the form of a tensor goes through the host. There a call that sends waits for the one that receives,
//! and calls between two devices for each other, so each direction between two workers has a communicator of its own,
//! and a thread sends once the receiver has asked: as over Gloo, no worker waits for another to take what it has
//! computed, unless there is much of it.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use burn::tensor::TensorMetadata;
use burn::tensor::ops::FloatTensor;
use kiln_ops::{primitive, tensor};
use kiln_system::{Error, Result};

use super::tensors::{Exchange, Flat, Ready, queued};
use super::{Broken, Collective, HostBackend, Key};

const DIMENSIONS: usize = 6;
/// The number of dimensions, their sizes, and whether channels are innermost.
type Head = [u64; DIMENSIONS + 2];

/// A vector, and the end of the work that computes it.
type Job<B> = (Key, Flat<B>, Option<Ready>);
/// To the thread that sends from device to device.
pub(super) type Outbox<B> = SyncSender<Job<B>>;

/// Starts the thread that sends to `worker`, with room for `most` tensors; `None` if they go through the host.
pub(super) fn outbox<B: HostBackend>(
    everyone: &Arc<Collective>,
    worker: usize,
    most: usize,
) -> Result<Option<Outbox<B>>> {
    let (ends, (jobs, inbox)) = ([everyone.rank(), worker], sync_channel::<Job<B>>(most));
    if everyone.wire(ends).is_none() {
        return Ok(None);
    }
    let group = everyone.clone();
    let deliver = move |(key, values, ready): Job<B>| {
        group.asked(key, worker)?;
        let peers = group.wire(ends).expect("the wire stays");
        let ready = ready.map(|ready| ready()).transpose().map_err(|symptom| Broken::Replica(symptom.0))?;
        values.send(&Exchange { peers, key, limit: group.threads.limit(key), ready })
    };
    let group = everyone.clone();
    let send = move || inbox.into_iter().try_for_each(deliver).unwrap_or_else(|broken| group.abort(broken));
    let thread = std::thread::Builder::new().name(format!("send-{}-{worker}", ends[0])).spawn(send);
    thread.map_err(|reason| Error::Training(format!("no thread that sends to worker {worker}: {reason}")))?;
    Ok(Some(jobs))
}

/// Sends a tensor to `worker`. Returns before it has arrived.
pub(super) fn send<B: HostBackend>(
    everyone: &Collective,
    outbox: Option<&Outbox<B>>,
    key: Key,
    worker: usize,
    values: FloatTensor<B>,
) -> std::result::Result<(), Broken> {
    let Some(outbox) = outbox else { return everyone.send(key, worker, &to_bytes::<B>(values)) };
    let (head, values) = in_order::<B>(values);
    let mut values = B::share(values);
    let devices = everyone.wire([everyone.rank(), worker]).and_then(|wire| wire.tensors.as_deref());
    let ready = devices.map(|devices| queued::<B, 1>(devices, [&mut values])).transpose();
    let ready = ready.map_err(|symptom| Broken::Replica(symptom.0))?;
    everyone.send(key, worker, bytemuck::cast_slice(&head))?;
    // The thread ends before the channel only with the group, whose verdict the next call returns.
    drop(outbox.send((key, Flat(tensor(values)), ready)));
    Ok(())
}

/// The tensor that `worker` sends.
pub(super) fn receive<B: HostBackend>(
    everyone: &Collective,
    key: Key,
    worker: usize,
    device: &B::Device,
) -> std::result::Result<FloatTensor<B>, Broken> {
    let bytes = everyone.receive(key, worker)?;
    let Some(peers) = everyone.wire([worker, everyone.rank()]) else { return Ok(of_bytes::<B>(&bytes, device)) };
    // Asks for the values.
    everyone.send(key, worker, &[0])?;
    let (shape, innermost) = form(&bytes);
    let by = Exchange { peers, key, limit: everyone.threads.limit(key), ready: None };
    let Flat(values) = Flat::<B>::receive(&by, shape.iter().product(), device)?;
    Ok(shaped::<B>(B::adopt(primitive(values), device), shape, innermost))
}

/// The values in the order of their memory, which the receiver keeps: the bits of what it computes may depend on it.
fn in_order<B: HostBackend>(mut values: FloatTensor<B>) -> (Head, FloatTensor<B>) {
    let innermost = values.shape().num_dims() == 4 && B::has_channels_innermost(&values);
    if innermost {
        values = B::float_permute(values, &[0, 2, 3, 1]);
    }
    let shape = values.shape();
    let mut head = Head::default();
    (head[0], head[DIMENSIONS + 1]) = (shape.num_dims() as u64, innermost.into());
    head[1..].iter_mut().zip(shape.iter()).for_each(|(size, dimension)| *size = *dimension as u64);
    (head, B::float_reshape(values, [shape.num_elements()].into()))
}

pub(super) fn to_bytes<B: HostBackend>(values: FloatTensor<B>) -> Vec<u8> {
    let ((head, values), mut numbers) = (in_order::<B>(values), Vec::new());
    B::append_to(values, &mut numbers);
    [bytemuck::cast_slice(&head), bytemuck::cast_slice(&numbers)].concat()
}

/// The inverse of [`to_bytes`].
pub(super) fn of_bytes<B: HostBackend>(bytes: &[u8], device: &B::Device) -> FloatTensor<B> {
    let (shape, innermost) = form(bytes);
    let values = bytemuck::pod_collect_to_vec::<u8, f32>(&bytes[size_of::<Head>()..]);
    shaped::<B>(B::from_host(&values, device), shape, innermost)
}

/// The shape in memory, and whether channels are innermost.
fn form(bytes: &[u8]) -> (Vec<usize>, bool) {
    let head: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes[..size_of::<Head>()]);
    let shape = head[1..].iter().take(head[0] as usize).map(|size| *size as usize).collect();
    (shape, head[DIMENSIONS + 1] != 0)
}

fn shaped<B: HostBackend>(values: FloatTensor<B>, shape: Vec<usize>, innermost: bool) -> FloatTensor<B> {
    let values = B::float_reshape(values, shape.into());
    if innermost { B::float_permute(values, &[0, 3, 1, 2]) } else { values }
}
