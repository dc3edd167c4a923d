//! The exchange of batch-norm statistics and the fence of a training step, as collectives of one micro-batch.

use std::sync::Arc;

use super::collective::{Collective, Combine, Key, Operation};
use super::trainee::Fence;
use crate::ops::statistics::{Direction, StatisticsGroup};

/// One replica's collectives in one micro-batch.
#[derive(Debug)]
pub(super) struct MicroBatchGroup {
    collective: Arc<dyn Collective>,
    key: Key,
}

impl MicroBatchGroup {
    /// `key` names the step and the micro-batch; its operation does not matter.
    pub(super) fn new(collective: Arc<dyn Collective>, key: Key) -> Arc<Self> {
        Arc::new(Self { collective, key })
    }
}

impl StatisticsGroup for MicroBatchGroup {
    fn total(&self, layer: usize, direction: Direction, values: Vec<f64>) -> Vec<f64> {
        let key = Key { operation: Operation::Statistics { layer, direction }, ..self.key };
        let combine: Combine = match direction {
            Direction::Forward => |shares| vec![Direction::Forward.total(&shares)],
            Direction::Backward => |shares| vec![Direction::Backward.total(&shares)],
        };
        let gather = || self.collective.all_gather(key, values, combine);
        let total = tracing::info_span!("statistics").in_scope(gather).unwrap_or_else(|verdict| verdict.unwind());
        total[0].clone()
    }
}

impl Fence for MicroBatchGroup {
    fn wait(&self) {
        let key = Key { operation: Operation::ForwardDone, ..self.key };
        self.collective.barrier(key).unwrap_or_else(|verdict| verdict.unwind());
    }
}
