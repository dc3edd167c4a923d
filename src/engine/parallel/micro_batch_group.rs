//! The replicas that batch-norm's statistics of one micro-batch come from.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensorOps;
use kiln_ops::statistics::{Combine, Direction, Payload, StatisticsGroup};
use kiln_ops::{Shared, primitive, tensor, with_values};
use parking_lot::Mutex;
use tracing::info_span;

use super::sums::gather_across;
use super::{Broken, Collective, Early, HostBackend, Key, Operation};

/// The layers, and the values per sample and channel that all replicas had there last. Of replicas that then differ,
/// one at least has another number than last time, and finds out.
pub(super) type Agreed = Arc<Mutex<HashMap<usize, f64>>>;

/// The replicas that share the batch-norm statistics of one micro-batch.
pub(super) struct MicroBatchGroup<B: HostBackend> {
    pub(super) collective: Arc<Collective>,
    /// Names the step and the micro-batch; its operation does not matter.
    pub(super) key: Key,
    pub(super) shares_tensors: bool,
    /// What reduces gradients during the backward pass.
    pub(super) early: Option<Arc<Early<B>>>,
    pub(super) agreed: Agreed,
    /// By layer what all replicas had in the forward pass, if its units are computed again.
    pub(super) combined: Option<Mutex<HashMap<usize, Payload>>>,
}

impl<B: HostBackend> MicroBatchGroup<B> {
    fn all<T: Clone + Send + Sync + 'static>(
        &self,
        layer: usize,
        direction: Direction,
        run: impl FnOnce(Key) -> Result<T, Broken>,
    ) -> T {
        let combined = self.combined.as_ref().filter(|_| direction == Direction::Forward);
        if let Some(all) = combined.and_then(|combined| combined.lock().get(&layer).cloned()) {
            return all.downcast_ref::<T>().expect("a layer exchanges its statistics in one way").clone();
        }
        let key = Key { operation: Operation::Statistics { layer, direction }, ..self.key };
        let all = info_span!("statistics").in_scope(|| run(key)).unwrap_or_else(|verdict| verdict.unwind());
        combined.into_iter().for_each(|combined| drop(combined.lock().insert(layer, Arc::new(all.clone()))));
        all
    }

    /// The tensors of all replicas, from device to device. Such calls are matched by their order, and each waits for
    /// the one before. That of statistics is the same on all replicas, which wait for each other; a bucket that has
    /// left before is summed before on all of them.
    fn across(&self, layer: usize, direction: Direction, own: Tensor<B, 1>) -> Tensor<B, 1> {
        self.all(layer, direction, |key| {
            self.early.iter().for_each(|early| early.settle());
            let counts = vec![own.dims()[0]; self.collective.size()];
            gather_across(&self.collective, key, own, &counts)
        })
    }
}

impl<B: HostBackend> StatisticsGroup for MicroBatchGroup<B> {
    fn gather(&self, layer: usize, direction: Direction, values: Vec<f64>, combine: Combine) -> Arc<Vec<Vec<f64>>> {
        if self.collective.devices().is_none() {
            return self.all(layer, direction, |key| self.collective.all_gather(key, values, combine));
        }
        // An engine for devices that takes the host's memory carries the bits as f32, which it does not look at.
        let own = B::from_host(bytemuck::cast_slice(&values), &B::Device::default());
        let all = tensor(B::share(primitive(self.across(layer, direction, tensor(own)))));
        let all: Vec<f64> = with_values::<B, _>(all, bytemuck::pod_collect_to_vec);
        Arc::new(combine(all.chunks(values.len()).map(<[f64]>::to_vec).collect()))
    }

    fn exchange(&self, layer: usize, direction: Direction, own: Payload) -> Option<Payload> {
        self.collective.devices()?;
        let own = Arc::unwrap_or_clone(own.downcast::<Shared<B>>().expect("statistics are tensors of this backend"));
        let device = B::Below::float_device(&own);
        let all = self.across(layer, direction, tensor(B::adopt(own, &device)));
        Some(Arc::new(B::share(primitive(all))))
    }

    fn agree(&self, layer: usize, each: f64, is_so: &dyn Fn() -> bool) {
        let last = self.agreed.lock().insert(layer, each);
        if last != Some(each) && !is_so() {
            let rule = "with synchronised batch-norm all samples of a batch need one size";
            Broken::Replica(format!("replicas have samples of different sizes: {rule}; use --no-sync-bn")).unwind()
        }
    }

    fn meet(
        &self,
        layer: usize,
        direction: Direction,
        part: Payload,
        combine: &dyn Fn(Vec<Payload>) -> Payload,
    ) -> Option<Payload> {
        self.shares_tensors.then(|| self.all(layer, direction, |key| self.collective.meet(key, part, combine)))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use burn::backend::Flex;

    use super::*;
    use crate::parallel::local_group;

    fn group(combined: Option<Mutex<HashMap<usize, Payload>>>) -> MicroBatchGroup<Flex> {
        MicroBatchGroup {
            collective: local_group(1, None, Duration::from_secs(1)).remove(0),
            key: Key { step: 0, micro_batch: 0, operation: Operation::Validation },
            shares_tensors: false,
            early: None,
            agreed: Agreed::default(),
            combined,
        }
    }

    #[test]
    fn units_that_are_computed_again_exchange_nothing_in_their_second_forward_pass() {
        let (group, calls) = (group(Some(Mutex::default())), Mutex::new(0));
        let exchange = |layer, direction| {
            group.all(layer, direction, |_| {
                *calls.lock() += 1;
                Ok(*calls.lock())
            })
        };
        let both = [(0, Direction::Forward), (1, Direction::Forward)].map(|(layer, way)| exchange(layer, way));
        assert_eq!(both, [1, 2]);
        assert_eq!([exchange(1, Direction::Forward), exchange(1, Direction::Backward)], [2, 3]);
        assert_eq!([exchange(0, Direction::Forward), exchange(0, Direction::Backward)], [1, 4]);
    }

    #[test]
    fn a_device_is_asked_only_for_a_new_size_and_another_size_elsewhere_is_refused() {
        let group = group(None);
        group.agree(0, 64.0, &|| true);
        group.agree(1, 16.0, &|| true);
        group.agree(0, 64.0, &|| panic!("the device was asked for a size that all had before"));
        let refused = catch_unwind(AssertUnwindSafe(|| group.agree(0, 49.0, &|| false)));
        let why = refused.err().and_then(|why| why.downcast::<Broken>().ok()).expect("another size breaks the group");
        assert!(why.to_string().contains("--no-sync-bn"), "{why}");
    }
}
