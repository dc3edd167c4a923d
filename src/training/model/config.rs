//! The `[model]` section of the configuration, documented for users in `config/default.toml` and checked by the config
//! room; and the one that a dictionary of weights belongs to.

use kiln_engine::state::StateDict;
use kiln_ops::Algorithm;
use kiln_system::{Error, Result};
use serde::{Deserialize, Serialize};

/// The layers before the first residual stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// One 3x3 convolution with stride 1, for images of about 32 pixels.
    Cifar,
    /// A 7x7 convolution with stride 2 and max-pooling, as in the paper (He et al., 2015).
    Imagenet,
}

/// The `[model]` section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    pub stem: Stem,
    pub depth: usize,
    pub width: usize,
    pub num_classes: usize,
    pub conv: Algorithm,
    pub zero_init_last_bn: bool,
    pub pretrained: String,
    pub freeze: String,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            stem: Stem::Cifar,
            depth: 18,
            width: 64,
            num_classes: 0,
            conv: Algorithm::Auto,
            zero_init_last_bn: false,
            pretrained: String::new(),
            freeze: "none".into(),
        }
    }
}

impl ModelConfig {
    /// The blocks of this network's stages.
    pub fn architecture(&self) -> Architecture {
        if self.depth == Architecture::RESNET34.depth() { Architecture::RESNET34 } else { Architecture::RESNET18 }
    }
}

/// The number of two-convolution blocks in each of the four stages (He et al., 2015, table 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// Blocks by stage, each at least 1.
    pub blocks: [usize; 4],
}

impl Architecture {
    pub const RESNET18: Self = Self { blocks: [2, 2, 2, 2] };
    pub const RESNET34: Self = Self { blocks: [3, 4, 6, 3] };

    /// The architecture of tensors with these torchvision names.
    pub fn of_names<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let count = |stage: usize| {
            let prefix = format!("layer{stage}.");
            let block = |name: &str| name.strip_prefix(&prefix)?.split('.').next()?.parse::<u16>().ok();
            names.clone().filter_map(block).max().map_or(0, |last| usize::from(last) + 1)
        };
        Self { blocks: [1, 2, 3, 4].map(count) }
    }

    /// The units of a forward pass: the stem, each block, the classifier. Each has its layers, by torchvision's names,
    /// and its work, in 3x3 convolutions of stride 1. These cost the same in every stage: a later stage has twice the
    /// channels and a quarter of the pixels. The work of the stem and the classifier is small and depends on the
    /// images.
    pub fn units(self) -> Vec<(Vec<String>, f64)> {
        let block = |stage: usize, block: usize| {
            let work = if stage > 0 && block == 0 { 1.5 } else { 2.0 };
            (vec![format!("layer{}.{block}", stage + 1)], work)
        };
        let blocks = (0..4).flat_map(|stage| (0..self.blocks[stage]).map(move |number| block(stage, number)));
        let (stem, classifier) = ((vec!["conv1".into(), "bn1".into()], 0.25), (vec!["fc".into()], 0.05));
        std::iter::once(stem).chain(blocks).chain([classifier]).collect()
    }

    /// Layers with weights, projections not counted.
    pub fn depth(self) -> usize {
        2 + 2 * self.blocks.iter().sum::<usize>()
    }
}

/// Refuses a ResNet with bottlenecks (three convolutions per block), by its name; `origin` is the source of its
/// weights.
///
/// # Errors
/// [`Error::Checkpoint`].
pub fn check_blocks(state: &StateDict, origin: &str) -> Result<()> {
    let Some(conv3) = state.get("layer1.0.conv3.weight") else { return Ok(()) };
    let Architecture { blocks } = Architecture::of_names(state.keys().map(String::as_str));
    let depth = 2 + 3 * blocks.iter().sum::<usize>();
    // Wide ones and ResNeXt have more channels within a block than a quarter of its outputs.
    let outputs = conv3.shape().first().copied().unwrap_or_default();
    let is_plain = conv3.shape().get(1).is_some_and(|inner| 4 * inner == outputs);
    let name = if is_plain { format!("ResNet-{depth}") } else { format!("wide ResNet or ResNeXt of {depth} layers") };
    Err(Error::Checkpoint(format!(
        "{origin} holds a {name}, which has bottlenecks (blocks of three convolutions); give weights of a ResNet-18 or \
         34"
    )))
}

/// The stem, depth and width of the ResNet with the weights `state`, and its number of outputs; `origin` names their
/// source. [`kiln_engine::nn::load_state`] checks that every tensor is there.
///
/// # Errors
/// [`Error::Checkpoint`] if the first or the last layer is missing or has another shape.
pub fn recognize(state: &StateDict, origin: &str) -> Result<(ModelConfig, usize)> {
    let shape = |name: &str| state.get(name).map(|tensor| tensor.shape().to_vec()).unwrap_or_default();
    let stem = match shape("conv1.weight")[..] {
        [_, 3, 3, 3] => Some(Stem::Cifar),
        [_, 3, 7, 7] => Some(Stem::Imagenet),
        _ => None,
    };
    match (stem, shape("conv1.weight").first(), &shape("fc.weight")[..]) {
        (Some(stem), Some(&width), &[classes, features]) if features == 8 * width && width > 0 && classes > 0 => {
            let depth = Architecture::of_names(state.keys().map(String::as_str)).depth();
            let config = ModelConfig { stem, depth, width, num_classes: classes, ..ModelConfig::default() };
            Ok((config, classes))
        }
        _ => Err(Error::Checkpoint(format!(
            "{origin} holds no ResNet: its 'conv1.weight' must be [width, 3, 3, 3] or [width, 3, 7, 7] and its \
             'fc.weight' [classes, 8 x width]; give weights that train or torchvision wrote"
        ))),
    }
}
