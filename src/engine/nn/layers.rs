//! Convolution and batch-norm with torchvision's parameter names, on Kiln's own primitives.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor};
use kiln_ops::{
    Algorithm, Epilogue, PreparedKernel, Sliding, TrainBackend, batch_norm, cast, conv2d, conv2d_normalized,
    inference_factors, normalize,
};

use super::context::{BatchStatistics, ForwardContext};
use super::parts::Parts;

/// Added to the variance, as in torchvision.
const EPSILON: f64 = 1e-5;

/// A square convolution without bias.
#[derive(Module, Debug)]
pub struct Conv2d<B: Backend> {
    /// Kernel `[out_channels, in_channels / groups, kernel, kernel]`.
    pub weight: Param<Tensor<B, 4>>,
    /// Stride, padding, groups and algorithm.
    #[module(skip)]
    pub sliding: Sliding,
}

impl<B: Backend> Conv2d<B> {
    /// A kernel of zeros, to be filled by [`super::initialize`] or from a file. Padding keeps the size at stride 1.
    pub fn new([inputs, outputs]: [usize; 2], kernel: usize, stride: usize, device: &B::Device) -> Self {
        let weight = Initializer::Zeros.init([outputs, inputs, kernel, kernel], device);
        Self { weight, sliding: Sliding { stride, padding: kernel / 2, groups: 1, algorithm: Algorithm::Auto } }
    }

    /// As many groups; the weight's inputs are those of one group.
    pub fn with_groups(mut self, groups: usize) -> Self {
        self.sliding.groups = groups;
        self
    }

    pub fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.sliding.algorithm = algorithm;
        self
    }
}

impl<B: TrainBackend> Conv2d<B> {
    /// `[batch, in_channels, h, w]` to `[batch, out_channels, ceil(h / stride), ceil(w / stride)]`.
    pub fn forward(&self, x: Tensor<B, 4>, context: &ForwardContext<B>) -> Tensor<B, 4> {
        conv2d(x, self.weight.val(), self.sliding, context.listener_of(self.weight.id))
    }

    /// [`Conv2d::forward`], then [`BatchNorm::forward_with`]; in an evaluation in one pass, where the backend has it.
    pub fn forward_normalized(
        &self,
        x: Tensor<B, 4>,
        norm: &BatchNorm<B>,
        epilogue: Epilogue<Tensor<B, 4>>,
        context: &ForwardContext<B>,
    ) -> Tensor<B, 4> {
        if context.is_training() {
            return norm.forward_with(self.forward(x, context), epilogue, context);
        }
        let [_, _, height, width] = x.dims();
        let kernel = context
            .prepared(self.weight.id, [height, width], || PreparedKernel::new(self.weight.val(), &x, self.sliding));
        conv2d_normalized(x, kernel, norm.inference_factors(), epilogue)
    }
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
    /// For the later parts of a batch; see [`BatchNorm::with_parts`].
    aux_bn: Vec<AuxiliaryNorm<B>>,
}

/// Scale and shift of a part of the batch in training. Its statistics are those of the part, and nobody needs their
/// average.
#[derive(Module, Debug)]
pub struct AuxiliaryNorm<B: Backend> {
    weight: Param<Tensor<B, 1>>,
    bias: Param<Tensor<B, 1>>,
}

/// What is in the names of auxiliary batch-norms, which only training needs.
pub const AUXILIARY: &str = ".aux_bn.";

impl<B: Backend> BatchNorm<B> {
    /// Scale one (zero with `zero_scale`), shift zero, running mean zero and variance one.
    pub fn new(channels: usize, zero_scale: bool, device: &B::Device) -> Self {
        let constant = |value: f64| Initializer::Constant { value }.init([channels], device);
        Self {
            weight: constant(if zero_scale { 0.0 } else { 1.0 }),
            bias: constant(0.0),
            running_mean: constant(0.0).set_require_grad(false),
            running_var: constant(1.0).set_require_grad(false),
            num_batches_tracked: Param::initialized(Default::default(), Tensor::zeros([1], device)),
            aux_bn: Vec::new(),
        }
    }

    /// The layer for training batches of so many equal parts, each with its own statistics, scale and shift (Xie et
    /// al., 2020). Those of the first part are the layer's own, the only ones that an evaluation uses.
    pub fn with_parts(mut self, parts: usize) -> Self {
        let copy = |param: &Param<Tensor<B, 1>>| Param::from_tensor(param.val().detach());
        let other = |_| AuxiliaryNorm { weight: copy(&self.weight), bias: copy(&self.bias) };
        self.aux_bn = (1..parts).map(other).collect();
        self
    }

    /// Whether scale and shift are frozen in all parts; false on a backend without autodiff.
    fn is_frozen(&self, context: &ForwardContext<B>) -> bool {
        let tracks = B::ad_enabled(&self.weight.val().device());
        let all = self.aux_bn.iter().flat_map(|it| [&it.weight, &it.bias]).chain([&self.weight, &self.bias]);
        tracks && !all.into_iter().any(|param| context.is_trained(param))
    }

    pub fn channels(&self) -> usize {
        self.weight.lazy_shape().num_elements()
    }
}

impl<B: TrainBackend> BatchNorm<B> {
    fn inference_factors(&self) -> [Tensor<B, 1>; 3] {
        let statistics = [&self.running_mean, &self.running_var].map(|param| param.val());
        let parameters = [&self.weight, &self.bias].map(|param| param.val());
        inference_factors(statistics, parameters, EPSILON)
    }

    /// Normalises `[batch, channels, height, width]` in the mode of `context`; a frozen layer uses running statistics.
    pub fn forward(&self, x: Tensor<B, 4>, context: &ForwardContext<B>) -> Tensor<B, 4> {
        self.forward_with(x, Epilogue::Identity, context)
    }

    /// [`BatchNorm::forward`] fused with `epilogue`.
    pub fn forward_with(
        &self,
        x: Tensor<B, 4>,
        epilogue: Epilogue<Tensor<B, 4>>,
        context: &ForwardContext<B>,
    ) -> Tensor<B, 4> {
        if !context.is_training() || self.is_frozen(context) {
            return normalize(x, self.inference_factors(), epilogue);
        }
        let parts = Parts { count: self.aux_bn.len() + 1, size: x.dims(), innermost: B::CHANNELS_INNERMOST };
        let joined = |own: &Param<Tensor<B, 1>>, of: fn(&AuxiliaryNorm<B>) -> &Param<Tensor<B, 1>>| {
            let all = std::iter::once(own).chain(self.aux_bn.iter().map(of));
            let mut all: Vec<_> = all.map(|param| param.val()).collect();
            if all.len() == 1 { all.swap_remove(0) } else { Tensor::cat(all, 0) }
        };
        let parameters = [joined(&self.weight, |it| &it.weight), joined(&self.bias, |it| &it.bias)];
        let sync = context.synchronized_layer();
        let done = batch_norm(parts.beside(x), parameters, EPSILON, sync.as_ref(), epilogue.map(|it| parts.beside(it)));
        let of_first =
            |values: Tensor<B, 1>| if parts.count > 1 { values.narrow(0, 0, self.channels()) } else { values };
        let [mean, variance] = [done.mean, done.variance].map(of_first);
        let layer = [self.running_mean.id, self.running_var.id, self.num_batches_tracked.id];
        context.collect(BatchStatistics { layer, mean, variance });
        parts.apart(done.output)
    }
}

/// A linear layer, `[batch, inputs]` to `[batch, outputs]`, computed in the type of `x`; the outputs are f32.
pub fn linear<B: TrainBackend>(layer: &Linear<B>, x: Tensor<B, 2>) -> Tensor<B, 2> {
    let dtype = x.dtype();
    let product = if B::CHANNELS_INNERMOST {
        let image = |values: Tensor<B, 2>| values.unsqueeze_dims(&[2, 3]);
        let sliding = Sliding { stride: 1, padding: 0, groups: 1, algorithm: Algorithm::Auto };
        let weight = layer.weight.val();
        conv2d(image(x), image(weight.transpose()), sliding, None).squeeze_dims(&[2, 3])
    } else {
        x.matmul(cast(layer.weight.val(), dtype))
    };
    let bias = layer.bias.as_ref().map(|bias| cast(bias.val(), dtype).unsqueeze());
    cast(bias.into_iter().fold(product, |product, bias: Tensor<B, 2>| product + bias), FloatDType::F32)
}
