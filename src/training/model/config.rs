//! The `[model]` section of the configuration, documented for users in `config/default.toml` and checked by the config
//! room; and the one that a dictionary of weights belongs to.

use kiln_engine::state::StateDict;
use kiln_ops::Algorithm;
use kiln_system::{Error, Result, with_defaults};
use serde::{Deserialize, Serialize};

use super::architecture::{Architecture, Bottleneck};

/// The layers before the first residual stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// One 3x3 convolution with stride 1, for images of about 32 pixels.
    Cifar,
    /// A 7x7 convolution with stride 2 and max-pooling, as in the paper (He et al., 2015).
    Imagenet,
}

with_defaults! {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ModelConfig {
        pub stem: Stem = Stem::Cifar,
        pub depth: usize = 18,
        pub width: usize = 64,
        pub groups: usize = Bottleneck::PLAIN.groups,
        pub width_per_group: usize = Bottleneck::PLAIN.width_per_group,
        pub num_classes: usize = 0,
        pub conv: Algorithm = Algorithm::Auto,
        pub zero_init_last_bn: bool = false,
        pub bn_parts: usize = 1,
        pub drop_path: f64 = 0.0,
        pub pretrained: String = String::new(),
        pub freeze: String = "none".into(),
    }
}

impl ModelConfig {
    /// The blocks of this network: ResNet-18's for an unknown depth, which the configuration does not have.
    pub fn architecture(&self) -> Architecture {
        let bottleneck = Bottleneck { groups: self.groups, width_per_group: self.width_per_group };
        Architecture::of_depth(self.depth, bottleneck).unwrap_or(Architecture::RESNET18)
    }
}

/// The stem, architecture and width of the ResNet with the weights `state`, and its number of outputs; `origin` names
/// their source. [`kiln_engine::nn::load_state`] checks that every tensor is there.
///
/// # Errors
/// [`Error::Checkpoint`] if the first or the last layer is missing or has another shape, or if no configuration has
/// these bottlenecks.
pub fn recognize(state: &StateDict, origin: &str) -> Result<(ModelConfig, usize)> {
    let shape = |name: &str| state.get(name).map(|tensor| tensor.shape().to_vec()).unwrap_or_default();
    let stem = match shape("conv1.weight")[..] {
        [_, 3, 3, 3] => Some(Stem::Cifar),
        [_, 3, 7, 7] => Some(Stem::Imagenet),
        _ => None,
    };
    let architecture = Architecture::of_state(state);
    let expanded = 8 * architecture.expansion();
    match (stem, shape("conv1.weight").first(), &shape("fc.weight")[..]) {
        (Some(stem), Some(&width), &[classes, features])
            if features == expanded * width && width > 0 && classes > 0 =>
        {
            let Bottleneck { groups, width_per_group } = architecture.bottleneck.unwrap_or(Bottleneck::PLAIN);
            let depth = architecture.depth();
            let config = ModelConfig {
                stem,
                depth,
                width,
                groups,
                width_per_group,
                num_classes: classes,
                ..ModelConfig::default()
            };
            let last = |bottleneck: Bottleneck| [features, bottleneck.inner(8 * width), 1, 1];
            let is_known = |bottleneck: Bottleneck| {
                let is_built = config.architecture() == architecture && bottleneck.inner(width) > 0;
                is_built && shape("layer4.0.conv3.weight") == last(bottleneck)
            };
            if architecture.bottleneck.is_none_or(is_known) {
                return Ok((config, classes));
            }
            Err(Error::Checkpoint(format!(
                "{origin} holds a ResNet of {depth} layers with other bottlenecks than torchvision's; give weights of a \
                 ResNet-50, 101 or 152, a wide one or a ResNeXt"
            )))
        }
        _ => Err(Error::Checkpoint(format!(
            "{origin} holds no ResNet: its 'conv1.weight' must be [width, 3, 3, 3] or [width, 3, 7, 7] and its \
             'fc.weight' [classes, {expanded} x width]; give weights that train or torchvision wrote"
        ))),
    }
}
