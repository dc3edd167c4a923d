//! Batch-norm's statistics and the fence of a training step, as collectives of one micro-batch.

use std::sync::Arc;

use super::collective::{Collective, Key, Operation};
use crate::model::Fence;
use crate::ops::statistics::{Direction, StatisticsGroup};

/// One replica's place in one micro-batch.
#[derive(Debug, Clone)]
pub(super) struct Micro {
    collective: Arc<dyn Collective>,
    key: Key,
}

impl Micro {
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

impl StatisticsGroup for Micro {
    fn all_gather(&self, layer: usize, direction: Direction, values: Vec<f64>) -> Arc<Vec<Vec<f64>>> {
        let key = Key { operation: Operation::Statistics { layer, direction }, ..self.key };
        let gather = || self.collective.all_gather(key, values);
        tracing::info_span!("statistics").in_scope(gather).unwrap_or_else(|verdict| verdict.unwind())
    }
}

impl Fence for Micro {
    fn wait(&self) {
        let key = Key { operation: Operation::ForwardDone, ..self.key };
        self.collective.barrier(key).unwrap_or_else(|verdict| verdict.unwind());
    }
}
