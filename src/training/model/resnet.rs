//! ResNet-18 to ResNet-152: "Deep Residual Learning for Image Recognition", He, Zhang, Ren, Sun, 2015, table 1; wide
//! ones and ResNeXts; with the layer names of torchvision. [`ForwardContext`] selects parallelism and precision
//! from outside.

use std::ops::Range;

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Tensor};
use kiln_engine::nn::{BatchNorm, Conv2d, ForwardContext, linear};
use kiln_ops::{Algorithm, Epilogue, Precision, TrainBackend, add_branch, arranged, cast, max_pool, mean_of_pixels};

use super::architecture::Bottleneck;
use super::config::{ModelConfig, Stem};
use super::loss::Loss;

/// Two 3x3 convolutions with a residual connection, or the three of a [`Bottleneck`].
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    conv1: Conv2d<B>,
    bn1: BatchNorm<B>,
    conv2: Conv2d<B>,
    bn2: BatchNorm<B>,
    conv3: Option<Conv2d<B>>,
    bn3: Option<BatchNorm<B>>,
    /// A 1x1 projection of the input, if its shape differs from the output's.
    downsample: Option<(Conv2d<B>, BatchNorm<B>)>,
}

impl<B: Backend> Block<B> {
    fn new([inputs, outputs]: [usize; 2], stride: usize, config: &ModelConfig, device: &B::Device) -> Self {
        let projected = stride != 1 || inputs != outputs;
        let bottleneck = config.architecture().bottleneck;
        let inner = bottleneck.map_or(outputs, |it| it.inner(outputs / Bottleneck::EXPANSION));
        let spatial =
            |channels: [usize; 2], stride: usize| Conv2d::new(channels, 3, stride, device).with_algorithm(config.conv);
        let norm = |channels: usize, is_last: bool| {
            BatchNorm::new(channels, is_last && config.zero_init_last_bn, device).with_parts(config.bn_parts)
        };
        let (conv1, conv2) = match bottleneck {
            None => (spatial([inputs, inner], stride), spatial([inner, inner], 1)),
            // torchvision's variant 1.5: the stride is the 3x3 convolution's.
            Some(Bottleneck { groups, .. }) => (
                Conv2d::new([inputs, inner], 1, 1, device),
                spatial([inner / groups, inner], stride).with_groups(groups),
            ),
        };
        Self {
            conv1,
            bn1: norm(inner, false),
            conv2,
            bn2: norm(inner, bottleneck.is_none()),
            conv3: bottleneck.map(|_| Conv2d::new([inner, outputs], 1, 1, device)),
            bn3: bottleneck.map(|_| norm(outputs, true)),
            downsample: projected.then(|| (Conv2d::new([inputs, outputs], 1, stride, device), norm(outputs, false))),
        }
    }
}

impl<B: TrainBackend> Block<B> {
    /// `factors` `[batch]` are the residual branch's.
    fn forward(&self, x: Tensor<B, 4>, factors: Option<Tensor<B, 1>>, context: &ForwardContext<B>) -> Tensor<B, 4> {
        let y = self.conv1.forward_normalized(x.clone(), &self.bn1, Epilogue::Relu, context);
        let shortcut = match &self.downsample {
            Some((conv, bn)) => conv.forward_normalized(x, bn, Epilogue::Identity, context),
            None => x,
        };
        let (y, conv, bn) = match (&self.conv3, &self.bn3) {
            (Some(conv), Some(bn)) => (self.conv2.forward_normalized(y, &self.bn2, Epilogue::Relu, context), conv, bn),
            _ => (y, &self.conv2, &self.bn2),
        };
        match factors {
            None => conv.forward_normalized(y, bn, Epilogue::AddRelu(shortcut), context),
            Some(factors) => add_branch(conv.forward_normalized(y, bn, Epilogue::Identity, context), factors, shortcut),
        }
    }
}

/// A range of the network's units in a forward pass.
#[derive(Debug, Clone)]
pub struct Units {
    pub range: Range<usize>,
    /// Height and width of the images that the first one sees.
    pub image: [usize; 2],
}

#[derive(Debug, Clone)]
pub enum Through<B: Backend> {
    /// Output of a range without the last unit: for the next unit, in the memory order of the backend.
    Maps(Tensor<B, 4>),
    /// Output of the last unit, `[batch, classes]`.
    Logits(Tensor<B, 2>),
}

/// The network: a stem, four stages of blocks, global average pooling and a linear classifier.
#[derive(Module, Debug)]
pub struct ResNet<B: Backend> {
    conv1: Conv2d<B>,
    bn1: BatchNorm<B>,
    #[module(skip)]
    is_pooled: bool,
    layer1: Vec<Block<B>>,
    layer2: Vec<Block<B>>,
    layer3: Vec<Block<B>>,
    layer4: Vec<Block<B>>,
    fc: Linear<B>,
    #[module(skip)]
    width: usize,
    #[module(skip)]
    pub(super) loss: Loss,
}

impl<B: Backend> ResNet<B> {
    /// The network with `classes` outputs, trained with `loss`, or with the cross-entropy if that is a label smoothing.
    /// Its weights are zero: fill them with [`kiln_engine::nn::initialize`] or [`kiln_engine::nn::load_state`].
    pub fn new(config: &ModelConfig, classes: usize, loss: impl Into<Loss>, device: &B::Device) -> Self {
        let (width, architecture) = (config.width, config.architecture());
        let (conv1, is_pooled) = match config.stem {
            Stem::Cifar => (Conv2d::new([3, width], 3, 1, device), false),
            Stem::Imagenet => (Conv2d::new([3, width], 7, 2, device), true),
        };
        let stage = |stage: usize| -> Vec<Block<B>> {
            let outputs = (width << stage) * architecture.expansion();
            let first = if stage == 0 { ([width, outputs], 1) } else { ([outputs / 2, outputs], 2) };
            let others = std::iter::repeat(([outputs; 2], 1));
            let blocks = std::iter::once(first).chain(others).take(architecture.blocks[stage]);
            blocks.map(|(channels, stride)| Block::new(channels, stride, config, device)).collect()
        };
        Self {
            conv1,
            bn1: BatchNorm::new(width, false, device).with_parts(config.bn_parts),
            is_pooled,
            layer1: stage(0),
            layer2: stage(1),
            layer3: stage(2),
            layer4: stage(3),
            fc: LinearConfig::new(8 * width * architecture.expansion(), classes)
                .with_initializer(Initializer::Zeros)
                .init(device),
            width,
            loss: loss.into(),
        }
    }

    /// How many units there are: see [`Architecture::units`](super::Architecture::units).
    pub fn units(&self) -> usize {
        self.blocks().count() + 2
    }

    fn blocks(&self) -> impl Iterator<Item = &Block<B>> {
        [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten()
    }
}

impl<B: TrainBackend> ResNet<B> {
    /// The stem and the blocks among `units`, of the input of the first one.
    fn maps(
        &self,
        units: &Range<usize>,
        mut x: Tensor<B, 4>,
        branches: Option<Tensor<B, 2>>,
        context: &ForwardContext<B>,
    ) -> Tensor<B, 4> {
        if units.start == 0 {
            x = self.conv1.forward_normalized(x, &self.bn1, Epilogue::Relu, context);
            if self.is_pooled {
                x = max_pool(x);
            }
        }
        let own = self.blocks().zip(1..).filter(|(_, unit)| units.contains(unit));
        let dtype = context.precision.dtype();
        let factors = |unit: usize| Some(cast(branches.clone()?.narrow(1, unit - 1, 1).squeeze_dim::<1>(1), dtype));
        own.fold(x, |x, (block, unit)| block.forward(x, factors(unit), context))
    }

    /// Whether the channels of a pixel are neighbours in memory, for images of this size.
    fn has_channels_innermost(&self, image: [usize; 2], context: &ForwardContext<B>) -> bool {
        let small = !self.has_large_maps(image) && !self.is_by_winograd();
        !small || context.precision != Precision::F32 || !context.is_training()
    }

    /// Whether the maps of the first stage have many channels and many pixels.
    fn has_large_maps(&self, image: [usize; 2]) -> bool {
        let shrunk_by = if self.is_pooled { 4 } else { 1 };
        self.width >= 32 && image.into_iter().all(|size| size / shrunk_by > 16)
    }

    /// Whether a CPU computes most layers by Winograd's algorithm, which needs channels innermost.
    fn is_by_winograd(&self) -> bool {
        let algorithm = self.layer1[0].conv2.sliding.algorithm;
        let fills_vectors = self.width >= 32 && self.width.is_multiple_of(16);
        fills_vectors && algorithm == Algorithm::Auto
    }
}

impl<B: TrainBackend> ResNet<B> {
    /// Images `[batch, 3, height, width]` to logits `[batch, classes]`, in the precision of `context`.
    pub fn forward(&self, images: Tensor<B, 4>, context: &ForwardContext<B>) -> Tensor<B, 2> {
        let [_, _, height, width] = images.dims();
        let all = Units { range: 0..self.units(), image: [height, width] };
        match self.forward_units(&all, images, None, context) {
            Through::Logits(logits) => logits,
            Through::Maps(_) => unreachable!("the last unit has logits"),
        }
    }

    /// A range of units. `x` are the images or, for a range without the first unit, the maps of the unit before it;
    /// `branches` `[batch, blocks]` are factors of the residual branches, one without them.
    pub fn forward_units(
        &self,
        units: &Units,
        x: Tensor<B, 4>,
        branches: Option<Tensor<B, 2>>,
        context: &ForwardContext<B>,
    ) -> Through<B> {
        let innermost = self.has_channels_innermost(units.image, context);
        let x = cast(x, context.precision.dtype());
        let x = match units.range.start {
            0 => arranged(x, innermost),
            _ if innermost => x.permute([0, 3, 1, 2]),
            _ => x,
        };
        let x = self.maps(&units.range, x, branches, context);
        if units.range.end == self.units() {
            return Through::Logits(linear(&self.fc, mean_of_pixels(x)));
        }
        // Seen in the order of its memory, so that it is not copied.
        Through::Maps(cast(if innermost { x.permute([0, 2, 3, 1]) } else { x }, FloatDType::F32))
    }
}
