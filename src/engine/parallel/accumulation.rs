//! What a step's micro-batches share: the sums of gradients, and the kernels of convolutions.
//!
//! A backward pass adds the gradient of each convolution kernel to that of the micro-batches before as soon as it is
//! final, so that there is one set of gradients and not a second one until the end of the pass. Other parameters are
//! small and added after it.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::module::{Module, ParamId};
use burn::tensor::Tensor;
use burn::tensor::TensorMetadata;
use burn::tensor::ops::FloatTensor;
use kiln_ops::{GradientListener, Precision, primitive, tensor};
use parking_lot::Mutex;

use super::{Early, HostBackend};
use crate::nn::{Kernel, kernel_weights};

/// The gradients of the micro-batches so far, by the place of their tensor. That of a kernel is missing while a
/// backward pass has it.
pub(super) struct Accumulation<B: HostBackend> {
    places: HashMap<ParamId, usize>,
    sums: Mutex<Vec<Option<Tensor<B, 1>>>>,
}

impl<B: HostBackend> Accumulation<B> {
    pub(super) fn new(kernels: &[Kernel]) -> Self {
        let places = kernels.iter().map(|kernel| (kernel.id, kernel.place)).collect();
        Self { places, sums: Mutex::default() }
    }

    /// Adds the flat gradients of a backward pass, some of which have those of the passes before in them.
    pub(super) fn add(&self, gradients: Vec<Tensor<B, 1>>) {
        let mut sums = self.sums.lock();
        sums.resize_with(gradients.len(), || None);
        for (sum, gradient) in sums.iter_mut().zip(gradients) {
            *sum = Some(match sum.take() {
                Some(earlier) => tensor(B::added(primitive(earlier), primitive(gradient))),
                None => gradient,
            });
        }
    }

    /// The sums after the last pass.
    pub(super) fn take(&self) -> Vec<Tensor<B, 1>> {
        self.sums.lock().drain(..).flatten().collect()
    }
}

/// What a backward pass tells of its gradients.
pub(super) struct Listener<B: HostBackend> {
    /// If the step has several micro-batches.
    pub(super) sums: Option<Arc<Accumulation<B>>>,
    /// Whether nobody looks at the gradients of a single one.
    pub(super) adds: bool,
    /// In the last backward pass of a step that several processes share.
    pub(super) early: Option<Arc<Early<B>>>,
    pub(super) kernels: Arc<PreparedKernels<B>>,
}

/// The kernels of a step's convolutions as their products read them, where a device makes all of them at once.
pub(super) struct PreparedKernels<B: HostBackend>(Mutex<HashMap<ParamId, FloatTensor<B>>>);

impl<B: HostBackend> PreparedKernels<B> {
    pub(super) fn of<M: Module<Autodiff<B>>>(model: &M, precision: Precision) -> Self {
        let mut ids = Vec::new();
        let weights = || {
            let (those, weights): (_, Vec<_>) = kernel_weights(model).into_iter().unzip();
            ids = those;
            weights
        };
        let prepared = B::conv_weights(weights, precision.dtype()).unwrap_or_default();
        Self(Mutex::new(ids.into_iter().zip(prepared).collect()))
    }
}

impl<B: HostBackend> GradientListener for Listener<B> {
    fn accumulated(&self, parameter: ParamId, gradient: Box<dyn Any>) -> Box<dyn Any> {
        let Some(sums) = self.sums.as_ref().filter(|_| self.adds) else { return gradient };
        let found = sums.places.get(&parameter).filter(|_| gradient.is::<FloatTensor<B>>());
        let Some(earlier) = found.and_then(|place| sums.sums.lock().get_mut(*place)?.take()) else { return gradient };
        let gradient = *gradient.downcast::<FloatTensor<B>>().expect("the type was looked at");
        Box::new(added(earlier, gradient))
    }

    fn ready(&self, parameter: ParamId, gradient: &dyn Fn() -> Box<dyn Any>) {
        let Some(early) = &self.early else { return };
        // Of another type it is reduced after the backward pass.
        let Ok(gradient) = gradient().downcast::<FloatTensor<B>>() else { return };
        // If somebody looks at it, it has not been added yet.
        let earlier = self.sums.iter().find_map(|sums| sums.sums.lock().get(*sums.places.get(&parameter)?)?.clone());
        early.ready(parameter, earlier.into_iter().fold(*gradient, |gradient, earlier| added(earlier, gradient)));
    }

    fn prepared(&self, parameter: ParamId) -> Option<Box<dyn Any>> {
        Some(Box::new(self.kernels.0.lock().get(&parameter)?.clone()))
    }
}

fn added<B: HostBackend>(flat: Tensor<B, 1>, gradient: FloatTensor<B>) -> FloatTensor<B> {
    B::added(B::float_reshape(primitive(flat), gradient.shape()), gradient)
}
