//! Batch-norm's statistics and the fence of a training step, as collectives of one micro-batch.

use std::sync::Arc;

use super::collective::{Collective, Combine, Key, Operation};
use super::trainee::Fence;
use crate::ops::statistics::{Direction, StatisticsGroup};

/// One replica's place in one micro-batch.
#[derive(Debug, Clone)]
pub(super) struct Meeting {
    collective: Arc<dyn Collective>,
    key: Key,
}

impl Meeting {
    /// `key` names the step and the micro-batch; its operation does not matter.
    pub(super) fn new(collective: Arc<dyn Collective>, key: Key) -> Self {
        Self { collective, key }
    }

    pub(super) fn statistics(&self) -> Arc<dyn StatisticsGroup> {
        Arc::new(self.clone())
    }

    pub(super) fn fence(&self) -> Arc<dyn Fence> {
        Arc::new(self.clone())
    }
}

impl StatisticsGroup for Meeting {
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

impl Fence for Meeting {
    fn wait(&self) {
        let key = Key { operation: Operation::ForwardDone, ..self.key };
        self.collective.barrier(key).unwrap_or_else(|verdict| verdict.unwind());
    }
}
