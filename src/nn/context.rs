//! How one forward pass is done: batch-norm by running statistics or by the batch's, alone or with other replicas; and
//! in which precision.
//!
//! A module cannot change itself in `forward`, and must not: replicas and forks would share the change at a moment
//! that depends on timing. So a training pass collects the statistics it saw, in forward order, and whoever owns the
//! model takes them into its running statistics after the step.

use std::cell::RefCell;
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::ops::statistics::{StatisticsGroup, Synchronized};
use crate::ops::{GradientListener, Listened, PrecisionKind};

/// Statistics of one batch-norm layer over one batch.
#[derive(Debug, Clone)]
pub struct BatchStatistics<B: Backend> {
    /// The layer's running mean, running variance and count of batches.
    pub(super) layer: [ParamId; 3],
    /// Mean, `[channels]`.
    pub mean: Tensor<B, 1>,
    /// Unbiased variance, `[channels]`.
    pub variance: Tensor<B, 1>,
}

/// One forward pass. Made for it and used once.
#[derive(Debug)]
pub struct ForwardContext<B: Backend> {
    mode: Mode,
    precision: PrecisionKind,
    listener: Option<Arc<dyn GradientListener>>,
    seen: RefCell<Vec<BatchStatistics<B>>>,
}

#[derive(Debug)]
enum Mode {
    Evaluate,
    Local,
    Synchronized { group: Arc<dyn StatisticsGroup>, present: bool },
}

impl<B: Backend> ForwardContext<B> {
    /// Running statistics; nothing is collected and nobody is asked.
    pub fn evaluate() -> Self {
        Self::new(Mode::Evaluate)
    }

    /// The statistics of this replica's own batch.
    pub fn local() -> Self {
        Self::new(Mode::Local)
    }

    /// The statistics of all replicas' samples. A replica without a sample passes `present: false` and any input.
    pub fn synchronized(group: Arc<dyn StatisticsGroup>, present: bool) -> Self {
        Self::new(Mode::Synchronized { group, present })
    }

    fn new(mode: Mode) -> Self {
        Self { mode, precision: PrecisionKind::F32, listener: None, seen: RefCell::default() }
    }

    /// The same pass with convolutions and the linear layer in `precision`; f32 unless said otherwise.
    pub fn in_precision(self, precision: PrecisionKind) -> Self {
        Self { precision, ..self }
    }

    /// The same pass, and `listener` hears of convolutions' gradients while its backward goes on.
    pub fn heard_by(self, listener: Option<Arc<dyn GradientListener>>) -> Self {
        Self { listener, ..self }
    }

    /// Who hears of the gradient of `parameter`.
    pub(super) fn listened(&self, parameter: ParamId) -> Option<Listened> {
        self.listener.clone().map(|listener| Listened { listener, parameter })
    }

    /// What convolutions and the linear layer compute in.
    pub fn precision(&self) -> PrecisionKind {
        self.precision
    }

    /// Whether batch statistics are used.
    pub fn is_training(&self) -> bool {
        !matches!(self.mode, Mode::Evaluate)
    }

    /// What the layer about to run needs to synchronise. Layers are numbered by the statistics collected so far.
    pub(super) fn synchronized_layer(&self) -> Option<Synchronized> {
        let Mode::Synchronized { group, present } = &self.mode else { return None };
        Some(Synchronized { group: group.clone(), layer: self.seen.borrow().len(), present: *present })
    }

    pub(super) fn collect(&self, statistics: BatchStatistics<B>) {
        self.seen.borrow_mut().push(statistics);
    }

    /// The statistics of all layers, in forward order.
    pub fn into_statistics(self) -> Vec<BatchStatistics<B>> {
        self.seen.into_inner()
    }
}
