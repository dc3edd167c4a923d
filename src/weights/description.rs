//! What a file of weights says about itself: enough to show the model an image and to name the answer.
//!
//! It travels as text in the header of a safetensors file, which other readers ignore.

use crate::data::Normalization;
use crate::state::Metadata;

const CLASSES: &str = "classes";
const MEAN: &str = "mean";
const STD: &str = "std";
const SIZE: &str = "image_size";
const CENTER: &str = "center_crop";

/// How images have to look, and what the outputs mean.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// Names of the classes; fewer than outputs where nobody named them.
    pub classes: Vec<String>,
    /// How pixels become numbers.
    pub normalization: Normalization,
    /// Height and width of the training images, in pixels.
    pub size: usize,
    /// Side of the middle square that was shown of images to measure on, as a share of the shorter side; 0 for all.
    pub center_crop: f64,
}

impl Description {
    /// As pairs for a file's header.
    pub fn to_metadata(&self) -> Metadata {
        let numbers = |values: [f32; 3]| values.map(|value| value.to_string()).join(",");
        let classes = serde_json::to_string(&self.classes).expect("texts are always JSON");
        let [mean, std] = [self.normalization.mean, self.normalization.std].map(numbers);
        let [size, center] = [self.size.to_string(), self.center_crop.to_string()];
        let pairs = [(CLASSES, classes), (MEAN, mean), (STD, std), (SIZE, size), (CENTER, center)];
        pairs.map(|(key, value)| (key.to_string(), value)).into()
    }

    /// Out of a file's header; none unless all of it is there.
    pub fn from_metadata(metadata: &Metadata) -> Option<Self> {
        let value = |key: &str| Some(metadata.iter().find(|(name, _)| name == key)?.1.as_str());
        let numbers = |key: &str| {
            let values: Vec<f32> = value(key)?.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            <[f32; 3]>::try_from(values).ok()
        };
        Some(Self {
            classes: serde_json::from_str(value(CLASSES)?).ok()?,
            normalization: Normalization { mean: numbers(MEAN)?, std: numbers(STD)? },
            size: value(SIZE)?.parse().ok().filter(|size| (1..=4096).contains(size))?,
            // Files that do not say so are of squeezed images.
            center_crop: value(CENTER).map_or(Some(0.0), |share| share.parse().ok()).filter(|it| is_share(*it))?,
        })
    }
}

/// Whether a middle square can have this share: all of it, or not so little that it would be a few pixels.
fn is_share(share: f64) -> bool {
    share == 0.0 || (0.1..=1.0).contains(&share)
}
