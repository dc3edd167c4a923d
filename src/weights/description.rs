//! The metadata of a weight file: preprocessing of images and names of classes, as text in the header of a safetensors
//! file, which other readers ignore.

use crate::data::Normalization;
use crate::state::Metadata;

const CLASSES: &str = "classes";
const MEAN: &str = "mean";
const STD: &str = "std";
const SIZE: &str = "image_size";
const CENTER: &str = "center_crop";

/// Most bytes of the names in a header, whose length readers limit; longer lists are left out.
const LONGEST_NAMES: usize = 3 << 20;

/// The preprocessing of images and the meaning of the outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// Names of the classes; fewer than outputs if they are not known.
    pub classes: Vec<String>,
    /// Normalisation of pixels.
    pub normalization: Normalization,
    /// Height and width of the training images, in pixels.
    pub size: usize,
    /// Side of the central square of validation images, as a share of the shorter side; 0 means the whole image.
    pub center_crop: f64,
}

impl Description {
    /// As pairs for a file's header.
    pub fn to_metadata(&self) -> Metadata {
        let numbers = |values: [f32; 3]| values.map(|value| value.to_string()).join(",");
        let classes = serde_json::to_string(&self.classes).expect("texts are always JSON");
        let classes = if classes.len() > LONGEST_NAMES { "[]".into() } else { classes };
        let [mean, std] = [self.normalization.mean, self.normalization.std].map(numbers);
        let [size, center] = [self.size.to_string(), self.center_crop.to_string()];
        let pairs = [(CLASSES, classes), (MEAN, mean), (STD, std), (SIZE, size), (CENTER, center)];
        pairs.map(|(key, value)| (key.to_string(), value)).into()
    }

    /// From a file's header; `None` if a part is missing or invalid.
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
            // Older files are for squeezed images.
            center_crop: value(CENTER).map_or(Some(0.0), |share| share.parse().ok()).filter(|it| is_share(*it))?,
        })
    }
}

/// Whether a central square may have this share; a smaller one would have too few pixels.
fn is_share(share: f64) -> bool {
    share == 0.0 || (0.1..=1.0).contains(&share)
}
