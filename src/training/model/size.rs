//! Parameter count and activation size of a network, computed from its definition.

use burn::module::Module;
use burn::tensor::backend::Backend;
use kiln_engine::nn::{Weights, float_tensors};

use super::architecture::Bottleneck;
use super::config::{ModelConfig, Stem};

/// Elements of a network's parameters, without running statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterCount {
    pub all: usize,
    pub trained: usize,
}

pub fn count_parameters<B: Backend, M: Module<B>>(model: &M) -> ParameterCount {
    let mut count = ParameterCount { all: 0, trained: 0 };
    for Weights { name, shape, is_trained, .. } in float_tensors(model) {
        let elements: usize = shape.iter().product();
        count.all += if name.contains("running_") { 0 } else { elements };
        count.trained += if is_trained { elements } else { 0 };
    }
    count
}

/// Elements saved for the backward pass per image: the output of each convolution (batch-norm's input) and of each ReLU
/// (the next convolution's input), by unit, for images of `[height, width]`. An estimate: backends allocate temporaries
/// too. With them the elements of the unit's output, which the next one begins with.
pub fn activation_elements(config: &ModelConfig, [height, width]: [usize; 2]) -> Vec<[usize; 2]> {
    let halve = |side: usize| side.div_ceil(2);
    let (mut height, mut width, stem) = match config.stem {
        Stem::Cifar => (height, width, 2 * config.width * height * width),
        Stem::Imagenet => {
            let (h, w) = (halve(height), halve(width));
            (halve(h), halve(w), 2 * config.width * h * w + config.width * halve(h) * halve(w))
        }
    };
    let mut units = vec![[stem, config.width * height * width]];
    let architecture = config.architecture();
    for (stage, blocks) in architecture.blocks.into_iter().enumerate() {
        let pixels_before = height * width;
        if stage > 0 {
            (height, width) = (halve(height), halve(width));
        }
        let (channels, pixels) = (config.width << stage, height * width);
        // Two maps per convolution, and the projection's output.
        let kept = |block: usize| match architecture.bottleneck {
            None => (2 * 2 + usize::from(stage > 0 && block == 0)) * channels * pixels,
            Some(bottleneck) => {
                let before = if block == 0 { pixels_before } else { pixels };
                let outer = (2 + usize::from(block == 0)) * Bottleneck::EXPANSION * channels * pixels;
                2 * bottleneck.inner(channels) * (before + pixels) + outer
            }
        };
        units.extend((0..blocks).map(|block| [kept(block), architecture.expansion() * channels * pixels]));
    }
    // The classifier's input is one number per channel.
    units.push([0, 0]);
    units
}
