//! What the user may choose about the network.
//!
//! The `[model]` section as it runs; `config/default.toml` documents it for users and the config room checks it. The
//! network itself is left to the neighbouring files.

use serde::{Deserialize, Serialize};

use crate::ops::Algorithm;

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
    /// The layers before the first residual stage.
    pub stem: Stem,
    /// Channels of the first stage, at least 1; each later stage doubles them. ResNet-18 has 64.
    pub width: usize,
    /// Outputs of the classifier; 0 takes as many as the data set has classes.
    pub num_classes: usize,
    /// How convolutions are computed.
    pub conv: Algorithm,
    /// Whether the last batch-norm of every block starts at zero, so that the block starts as the identity.
    pub zero_init_last_bn: bool,
    /// Where weights come from instead of being drawn: `torchvision` or a file; empty draws them.
    pub pretrained: String,
    /// What keeps its values: see [`crate::nn::freeze`].
    pub freeze: String,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            stem: Stem::Cifar,
            width: 64,
            num_classes: 0,
            conv: Algorithm::Auto,
            zero_init_last_bn: false,
            pretrained: String::new(),
            freeze: "none".into(),
        }
    }
}
