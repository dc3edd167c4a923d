//! The running statistics of batch-norm, which an evaluation uses: averages over the batches of training.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Int, Tensor};
use kiln_ops::{BatchNormOps, primitive, tensor};

use super::context::BatchStatistics;

/// Weight of a new batch in the running statistics, as in torchvision.
const MOMENTUM: f64 = 0.1;

/// The model with its running statistics updated by the `statistics` of a training pass, off the graph. All layers are
/// updated at once, since a device spends more time on the start of such small operations than on their work.
pub fn update_running_statistics<B, M>(model: M, mut statistics: Vec<BatchStatistics<B>>) -> M
where
    B: AutodiffBackend<InnerBackend: BatchNormOps>,
    M: Module<B>,
{
    if statistics.is_empty() {
        return model;
    }
    let ids = statistics.iter().flat_map(|batch| batch.layer).collect();
    let mut running = Running::<B> { ids, averages: HashMap::new(), counts: HashMap::new() };
    model.visit(&mut running);
    while !statistics.is_empty() {
        // A layer that was used several times has several batches.
        let mut seen = HashSet::new();
        let (next, later) = statistics.into_iter().partition(|batch: &BatchStatistics<B>| seen.insert(batch.layer));
        running.update(next);
        statistics = later;
    }
    model.map(&mut running)
}

/// The running statistics of some layers.
struct Running<B: AutodiffBackend> {
    ids: HashSet<ParamId>,
    averages: HashMap<ParamId, Tensor<B::InnerBackend, 1>>,
    counts: HashMap<ParamId, Tensor<B::InnerBackend, 1, Int>>,
}

impl<B: AutodiffBackend<InnerBackend: BatchNormOps>> Running<B> {
    /// Adds one batch of each of these layers.
    fn update(&mut self, batches: Vec<BatchStatistics<B>>) {
        let (mut ids, mut values, mut counters) = (Vec::new(), Vec::new(), Vec::new());
        for BatchStatistics { layer: [of_mean, of_variance, counter], mean, variance } in batches {
            ids.extend([of_mean, of_variance]);
            values.extend([mean, variance].map(|values| primitive(values.inner())));
            counters.push(counter);
        }
        const FOUND: &str = "statistics are of layers of the model";
        let averages = ids.iter().map(|id| primitive(self.averages.remove(id).expect(FOUND))).collect();
        let counts = counters.iter().map(|id| self.counts.remove(id).expect(FOUND).into_primitive()).collect();
        let (averages, counts) = B::InnerBackend::bn_running(averages, values, counts, MOMENTUM);
        self.averages.extend(ids.into_iter().zip(averages.into_iter().map(tensor)));
        self.counts.extend(counters.into_iter().zip(counts.into_iter().map(Tensor::from_primitive)));
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Running<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.ids.contains(&param.id) {
            self.averages.insert(param.id, param.val().inner().flatten(0, D - 1));
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        if self.ids.contains(&param.id) {
            self.counts.insert(param.id, param.val().inner().flatten(0, D - 1));
        }
    }
}

impl<B: AutodiffBackend> ModuleMapper<B> for Running<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        match self.averages.remove(&param.id) {
            Some(value) => Param::initialized(param.id, Tensor::from_inner(value.reshape(param.lazy_shape()))),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<B, D, Int>>) -> Param<Tensor<B, D, Int>> {
        match self.counts.remove(&param.id) {
            Some(count) => Param::initialized(param.id, Tensor::from_inner(count.reshape(param.lazy_shape()))),
            None => param,
        }
    }
}
