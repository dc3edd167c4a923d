//! The constants that normalise pixels, and how the configuration names them.

use std::fmt;
use std::str::FromStr;

use kiln_ops::images::CHANNELS;

/// Mean and standard deviation per channel, of pixels scaled to `0..=1`: a pixel `p` becomes `(p / 255 - mean) / std`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalization {
    /// Mean of red, green, blue.
    pub mean: [f32; CHANNELS],
    /// Standard deviation of red, green, blue.
    pub std: [f32; CHANNELS],
}

impl Normalization {
    /// The usual constants of CIFAR-10's training set.
    pub const CIFAR10: Self = Self { mean: [0.4914, 0.4822, 0.4465], std: [0.2470, 0.2435, 0.2616] };
    /// The usual constants of CIFAR-100's training set.
    pub const CIFAR100: Self = Self { mean: [0.5071, 0.4865, 0.4409], std: [0.2673, 0.2564, 0.2762] };
    /// ImageNet's constants, commonly used for photographs.
    pub const IMAGENET: Self = Self { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };
}

/// The constants that normalise pixels to mean 0 and deviation 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NormalizationKind {
    /// The data set's own.
    Dataset,
    /// ImageNet's, which torchvision's weights were trained with.
    Imagenet,
    /// These, as pretrained weights may need them.
    Given(Normalization),
}

impl From<Normalization> for NormalizationKind {
    fn from(constants: Normalization) -> Self {
        if constants == Normalization::IMAGENET { Self::Imagenet } else { Self::Given(constants) }
    }
}

impl FromStr for NormalizationKind {
    type Err = String;

    /// Reads `dataset`, `imagenet`, or the means and the deviations as in `0.5,0.5,0.5/0.25,0.25,0.25`.
    fn from_str(text: &str) -> Result<Self, String> {
        const RULE: &str = "dataset, imagenet, or means and deviations as in 0.5,0.5,0.5/0.25,0.25,0.25";
        let three = |text: &str| -> Option<[f32; 3]> {
            let numbers = text.split(',').map(|number| number.trim().parse::<f32>().ok().filter(|it| it.is_finite()));
            numbers.collect::<Option<Vec<_>>>()?.try_into().ok()
        };
        let given = |text: &str| {
            let (mean, std) = text.split_once('/')?;
            let std = three(std).filter(|std| std.iter().all(|it| it.is_normal() && *it > 0.0))?;
            Some(Self::Given(Normalization { mean: three(mean)?, std }))
        };
        match text {
            "dataset" => Ok(Self::Dataset),
            "imagenet" => Ok(Self::Imagenet),
            text => given(text).ok_or_else(|| RULE.into()),
        }
    }
}

impl fmt::Display for NormalizationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: [f32; 3]| values.map(|value| value.to_string()).join(",");
        match self {
            Self::Dataset => f.write_str("dataset"),
            Self::Imagenet => f.write_str("imagenet"),
            Self::Given(Normalization { mean, std }) => write!(f, "{}/{}", list(*mean), list(*std)),
        }
    }
}
