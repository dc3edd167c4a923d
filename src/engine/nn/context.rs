//! The settings of one forward pass: whether batch-norm uses running, local or synchronised statistics, and the
//! precision.
//!
//! A module cannot change itself in `forward`, and must not: replicas share it, and the result would depend on timing.
//! So a training pass collects batch statistics in forward order, and the owner of the model updates its running
//! statistics after the step.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Param, ParamId};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_ops::statistics::{StatisticsGroup, Synchronized};
use kiln_ops::{GradientListener, ParameterListener, Precision};
use parking_lot::Mutex;

/// Statistics of one batch-norm layer over one batch.
#[derive(Debug, Clone)]
pub struct BatchStatistics<B: Backend> {
    /// Ids of the layer's running mean, running variance and count of batches.
    pub(super) layer: [ParamId; 3],
    /// Mean, `[channels]`.
    pub mean: Tensor<B, 1>,
    /// Unbiased variance, `[channels]`.
    pub variance: Tensor<B, 1>,
}

/// Kernels by their parameter and the height and width of the images.
type PreparedKernels = HashMap<(ParamId, [usize; 2]), Box<dyn Any + Send>>;

/// The settings and collected statistics of one forward pass; used once. An evaluation of several batches uses it or
/// its clones for all of them, and prepares the kernels of the model once.
#[derive(Debug, Clone)]
pub struct ForwardContext<B: Backend> {
    mode: Mode,
    /// The precision of convolutions and the linear layer.
    pub precision: Precision,
    listener: Option<Arc<dyn GradientListener>>,
    seen: RefCell<Vec<BatchStatistics<B>>>,
    /// Layers with batch statistics before the first one of this pass.
    before: usize,
    /// The trained parameters of a pass without a graph, whose tensors do not tell.
    trained: Option<Arc<HashSet<ParamId>>>,
    kernels: Arc<Mutex<PreparedKernels>>,
}

#[derive(Debug, Clone)]
enum Mode {
    Evaluate,
    Local,
    Synchronized { group: Arc<dyn StatisticsGroup>, samples: Arc<[usize]>, replica: usize },
}

impl<B: Backend> ForwardContext<B> {
    /// Evaluation: running statistics, nothing is collected or exchanged.
    pub fn evaluate() -> Self {
        Self::new(Mode::Evaluate)
    }

    /// Training with the statistics of this replica's own batch.
    pub fn local() -> Self {
        Self::new(Mode::Local)
    }

    /// Training with the statistics of all replicas' samples: how many each of them has, and the number of this one.
    /// One without any passes some input.
    pub fn synchronized(group: Arc<dyn StatisticsGroup>, samples: Arc<[usize]>, replica: usize) -> Self {
        Self::new(Mode::Synchronized { group, samples, replica })
    }

    fn new(mode: Mode) -> Self {
        let (seen, before, kernels) = Default::default();
        Self { mode, precision: Precision::F32, listener: None, seen, before, trained: None, kernels }
    }

    /// The same pass with convolutions and the linear layer in `precision`; the default is f32.
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same pass; during its backward, `listener` is called with the gradients of convolution kernels.
    pub fn with_listener(self, listener: Arc<dyn GradientListener>) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// The same pass without a graph, of a model in which the parameters `trained` would have a gradient.
    pub(crate) fn untracked(self, trained: HashSet<ParamId>) -> Self {
        Self { trained: Some(Arc::new(trained)), ..self }
    }

    /// A pass with a graph that computes again what follows in this one.
    pub(crate) fn again(&self) -> Self {
        Self { before: self.layer(), seen: RefCell::default(), trained: None, ..self.clone() }
    }

    pub(super) fn is_trained<const D: usize>(&self, parameter: &Param<Tensor<B, D>>) -> bool {
        self.trained.as_ref().map_or(parameter.is_require_grad(), |trained| trained.contains(&parameter.id))
    }

    /// The number of the next layer with batch statistics.
    fn layer(&self) -> usize {
        self.before + self.seen.borrow().len()
    }

    /// The listener for the gradient of `parameter`.
    pub(super) fn listener_of(&self, parameter: ParamId) -> Option<ParameterListener> {
        self.listener.clone().map(|listener| ParameterListener { listener, parameter })
    }

    /// The kernel for images of this height and width in an evaluation, made by `prepare` at its first use.
    pub(super) fn prepared<T: Clone + Send + 'static>(
        &self,
        parameter: ParamId,
        image: [usize; 2],
        prepare: impl FnOnce() -> T,
    ) -> T {
        let mut kernels = self.kernels.lock();
        let kernel = kernels.entry((parameter, image)).or_insert_with(|| Box::new(prepare()));
        kernel.downcast_ref::<T>().expect("an evaluation has one backend and one precision").clone()
    }

    /// Whether batch statistics are used.
    pub fn is_training(&self) -> bool {
        !matches!(self.mode, Mode::Evaluate)
    }

    /// The synchronisation of the next layer. Layers are numbered by the statistics collected so far.
    pub(super) fn synchronized_layer(&self) -> Option<Synchronized> {
        let Mode::Synchronized { group, samples, replica } = &self.mode else { return None };
        let (group, samples) = (group.clone(), samples.clone());
        Some(Synchronized { group, layer: self.layer(), samples, replica: *replica })
    }

    pub(super) fn collect(&self, statistics: BatchStatistics<B>) {
        self.seen.borrow_mut().push(statistics);
    }

    /// The statistics of all layers, in forward order.
    pub fn into_statistics(self) -> Vec<BatchStatistics<B>> {
        self.seen.into_inner()
    }
}
