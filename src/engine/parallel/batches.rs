//! The batches of a task, prepared ahead of the replica and brought to its device.

use std::sync::Arc;

use kiln_system::Result;

use super::loader::Loader;
use super::{HostBackend, Shard, Split, Task};

/// How many batches are prepared ahead of the replica.
const PREFETCH: usize = 2;

/// Batches, and the number of the replica's own samples in each.
pub(super) type Batches<I> = Box<dyn Iterator<Item = Result<(I, usize)>> + Send>;

/// The batches of some shards, prepared ahead; where threads cannot share a tensor, in host memory.
pub(super) fn batches<B: HostBackend, T: Task<B>>(
    task: &Arc<T>,
    split: Split,
    shards: impl Iterator<Item = Shard> + Clone + Send + 'static,
    device: &B::Device,
) -> Result<Batches<T::Input>> {
    let foresight = task.foresee(split, Box::new(shards.clone()));
    let (preparing, uploading, device) = (task.clone(), task.clone(), device.clone());
    let prepare = move |shard: Shard| {
        let _while_loading = &foresight;
        let items = preparing.fetch(split, &shard.ids)?;
        Ok((preparing.prepare(split, items, &shard)?, shard.samples()))
    };
    let upload = move |(batch, samples)| (uploading.upload(batch, &device), samples);
    Ok(if B::CAN_SHARE {
        let ahead = move |shard| {
            B::stay_on_one_thread();
            prepare(shard).map(&upload)
        };
        Box::new(Loader::new(shards, ahead, PREFETCH)?)
    } else {
        Box::new(Loader::new(shards, prepare, PREFETCH)?.map(move |batch| batch.map(&upload)))
    })
}
