//! Convolution and batch-norm with torchvision's parameter names, on Kiln's own primitives.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Initializer, Linear};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};

use super::context::{BatchStatistics, ForwardContext};
use crate::ops::{
    Algorithm, Behind, Precision, Sliding, TrainBackend, across, arranged, batch_norm_and, batch_norm_inference,
    conv2d, down, up,
};

/// The constant under the root, as in torchvision.
const EPSILON: f64 = 1e-5;
/// How much of a running statistic a new batch replaces, as in torchvision.
const MOMENTUM: f64 = 0.1;

/// A square convolution without bias.
#[derive(Module, Debug)]
pub struct Conv2d<B: Backend> {
    /// Kernel `[out_channels, in_channels, kernel, kernel]`.
    pub weight: Param<Tensor<B, 4>>,
    #[module(skip)]
    sliding: Sliding,
}

impl<B: Backend> Conv2d<B> {
    /// All zero, to be filled by [`super::initialize`] or from a file. Padding keeps the size at stride 1.
    pub fn new([inputs, outputs]: [usize; 2], kernel: usize, stride: usize, device: &B::Device) -> Self {
        let weight = Initializer::Zeros.init([outputs, inputs, kernel, kernel], device);
        Self { weight, sliding: Sliding { stride, padding: kernel / 2, algorithm: Algorithm::Auto } }
    }

    /// The same, computed like this.
    pub fn by(mut self, algorithm: Algorithm) -> Self {
        self.sliding.algorithm = algorithm;
        self
    }

    /// How it is computed.
    pub fn algorithm(&self) -> Algorithm {
        self.sliding.algorithm
    }
}

impl<B: TrainBackend> Conv2d<B> {
    /// `[batch, in_channels, h, w]` to `[batch, out_channels, ceil(h / stride), ceil(w / stride)]`.
    pub fn forward<P: Precision<B>>(
        &self,
        x: Tensor<P::Compute, 4>,
        context: &ForwardContext<B>,
    ) -> Tensor<P::Compute, 4> {
        conv2d(x, down::<P, B, 4>(self.weight.val()), self.sliding, context.listened(self.weight.id))
    }
}

/// The model with its kernels as evaluation wants them in memory, once for all of its batches.
pub fn for_evaluation<B: TrainBackend, M: Module<B>>(model: M) -> M {
    struct Arrange;
    impl<B: TrainBackend> ModuleMapper<B> for Arrange {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            if D != 4 {
                return param;
            }
            let kernel = Tensor::<B, 4>::from_primitive(param.val().into_primitive());
            Param::initialized(param.id, Tensor::from_primitive(arranged(kernel, true).into_primitive()))
        }
    }
    model.map(&mut Arrange)
}

/// Batch normalisation over `[batch, height, width]`, one statistic per channel.
///
/// Running statistics are `0.9 * running + 0.1 * batch` with the unbiased variance, as in PyTorch.
#[derive(Module, Debug)]
pub struct BatchNorm<B: Backend> {
    /// Scale, `[channels]`.
    pub weight: Param<Tensor<B, 1>>,
    /// Shift, `[channels]`.
    pub bias: Param<Tensor<B, 1>>,
    running_mean: Param<Tensor<B, 1>>,
    running_var: Param<Tensor<B, 1>>,
    num_batches_tracked: Param<Tensor<B, 1, Int>>,
}

impl<B: Backend> BatchNorm<B> {
    /// Scale one (or zero, for the last of a residual branch), shift zero, statistics of a standard normal.
    pub fn new(channels: usize, zero_scale: bool, device: &B::Device) -> Self {
        let constant = |value: f64| Initializer::Constant { value }.init([channels], device);
        Self {
            weight: constant(if zero_scale { 0.0 } else { 1.0 }),
            bias: constant(0.0),
            running_mean: constant(0.0).set_require_grad(false),
            running_var: constant(1.0).set_require_grad(false),
            num_batches_tracked: Param::initialized(Default::default(), Tensor::zeros([1], device)),
        }
    }

    /// Whether neither scale nor shift is trained, where anything is.
    pub(super) fn is_frozen(&self) -> bool {
        let tracks = B::ad_enabled(&self.weight.val().device());
        tracks && !self.weight.is_require_grad() && !self.bias.is_require_grad()
    }

    /// How many channels it normalises.
    pub fn channels(&self) -> usize {
        self.weight.lazy_shape().num_elements()
    }
}

/// The model after a training pass that collected `statistics`: its batch-norm layers' running statistics, off the graph,
/// have taken in those of the batch.
pub fn update_running_statistics<B: AutodiffBackend, M: Module<B>>(model: M, statistics: Vec<BatchStatistics<B>>) -> M {
    struct Update<B: AutodiffBackend>(Vec<BatchStatistics<B>>);
    impl<B: AutodiffBackend> ModuleMapper<B> for Update<B> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let id = param.id;
            let of_batch = self.0.iter().filter_map(|batch| match batch.layer {
                [mean, _, _] if mean == id => Some(&batch.mean),
                [_, variance, _] if variance == id => Some(&batch.variance),
                _ => None,
            });
            of_batch.fold(param, |running, batch| {
                let batch = batch.clone().inner().reshape(running.lazy_shape());
                let value = running.val().inner() * (1.0 - MOMENTUM) + batch * MOMENTUM;
                Param::initialized(id, Tensor::from_inner(value))
            })
        }

        fn map_int<const D: usize>(&mut self, param: Param<Tensor<B, D, Int>>) -> Param<Tensor<B, D, Int>> {
            let id = param.id;
            let batches = self.0.iter().filter(|batch| batch.layer[2] == id);
            batches.fold(param, |param, _| param.map(|count| count + 1))
        }
    }
    if statistics.is_empty() { model } else { model.map(&mut Update(statistics)) }
}

impl<B: TrainBackend> BatchNorm<B> {
    /// Normalises `[batch, channels, height, width]` as `context` says; if it is frozen, by its running statistics.
    pub fn forward<P: Precision<B>>(
        &self,
        x: Tensor<P::Compute, 4>,
        context: &ForwardContext<B>,
    ) -> Tensor<P::Compute, 4> {
        self.forward_and::<P>(x, Behind::Nothing, context)
    }

    /// [`BatchNorm::forward`], and what is behind it.
    pub fn forward_and<P: Precision<B>>(
        &self,
        x: Tensor<P::Compute, 4>,
        behind: Behind<Tensor<P::Compute, 4>>,
        context: &ForwardContext<B>,
    ) -> Tensor<P::Compute, 4> {
        let parameters = [&self.weight, &self.bias].map(|param| across::<P, B, 1>(param.val()));
        if !context.is_training() || self.is_frozen() {
            let statistics = [&self.running_mean, &self.running_var].map(|param| across::<P, B, 1>(param.val()));
            return batch_norm_inference(x, statistics, parameters, EPSILON, behind);
        }
        let done = batch_norm_and(x, parameters, EPSILON, context.synchronized_layer().as_ref(), behind);
        let [mean, variance] = [done.mean, done.variance].map(up::<P, B, 1>);
        let layer = [self.running_mean.id, self.running_var.id, self.num_batches_tracked.id];
        context.collect(BatchStatistics { layer, mean, variance });
        done.output
    }
}

/// A linear map with bias, computed in the pass's precision.
pub fn linear<P: Precision<B>, B: TrainBackend>(layer: &Linear<B>, x: Tensor<P::Compute, 2>) -> Tensor<B, 2> {
    let product = x.matmul(down::<P, B, 2>(layer.weight.val()));
    let bias = layer.bias.as_ref().map(|bias| down::<P, B, 1>(bias.val()).unsqueeze());
    up::<P, B, 2>(match bias {
        Some(bias) => product + bias,
        None => product,
    })
}
