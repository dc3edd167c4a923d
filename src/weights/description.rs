//! The preprocessing of images and the meaning of the outputs, which every exported file carries: as text in the header
//! of a safetensors file, as an attribute of the dictionary in a `.pth` file, as the metadata of an ONNX file.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use kiln_data::{Exif, Interpolation, Normalization};
use kiln_engine::state::Metadata;
use kiln_system::quoted;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const CLASSES: &str = "classes";
const MEAN: &str = "mean";
const STD: &str = "std";
const SIZE: &str = "image_size";
const CENTER: &str = "center_crop";
const EXIF: &str = "exif";
const INTERPOLATION: &str = "interpolation";

/// The keys of a description in a file.
pub(super) const KEYS: [&str; 7] = [CLASSES, MEAN, STD, SIZE, CENTER, EXIF, INTERPOLATION];

/// Most bytes of class names in a header; longer lists are omitted, because readers limit headers.
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
    /// Whether images are turned upright.
    pub exif: Exif,
    /// How images are resized.
    pub interpolation: Interpolation,
}

impl Description {
    pub(super) fn to_json(&self) -> Value {
        let length: usize = self.classes.iter().map(|name| name.len() + 3).sum();
        let classes = if length > LONGEST_NAMES { &[][..] } else { &self.classes };
        // An f32 has fewer digits than the f64 next to it.
        let numbers = |values: [f32; 3]| values.map(|value| value.to_string().parse::<f64>().unwrap_or(value.into()));
        let [mean, std] = [self.normalization.mean, self.normalization.std].map(numbers);
        json!({
            CLASSES: classes, MEAN: mean, STD: std, SIZE: self.size, CENTER: self.center_crop, EXIF: self.exif,
            INTERPOLATION: self.interpolation,
        })
    }

    /// The part of an image that is shown, and how it is turned and resized, as the end of a sentence about its size.
    pub fn framing(&self) -> String {
        let part = match self.center_crop {
            0.0 => String::new(),
            share => format!(", the middle {} % of the shorter side", 100.0 * share),
        };
        let turned = if self.exif == Exif::Apply { ", turned upright by EXIF" } else { "" };
        let resized = match self.interpolation {
            Interpolation::Bilinear => String::new(),
            other => format!(", resized by {other} interpolation"),
        };
        format!("{part}{turned}{resized}")
    }

    pub fn to_metadata(&self) -> Metadata {
        let Value::Object(pairs) = self.to_json() else { return Metadata::new() };
        pairs.into_iter().map(|(key, value)| (key, text(&value))).collect()
    }
}

/// A value of a description as text: numbers separated by commas, names as JSON.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_number) && !items.is_empty() => {
            items.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
        }
        value => value.to_string(),
    }
}

/// The parts of a [`Description`] that a file or the user states.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct Stated {
    /// Mean of red, green and blue, for values from 0 to 1; without it, what the weights say.
    #[arg(long, value_name = "R,G,B", value_parser = mean)]
    pub mean: Option<[f32; 3]>,
    /// Their standard deviation, as --mean.
    #[arg(long, value_name = "R,G,B", value_parser = deviation)]
    pub std: Option<[f32; 3]>,
    /// Side in pixels that images are resized to; without it, the side of the training images.
    #[arg(long = "image-size", value_name = "N", value_parser = size)]
    pub size: Option<usize>,
    /// Side of the central square as a fraction of the image's shorter side, or 0 for the whole image; without it, as
    /// the weights say.
    #[arg(long, value_name = "X", value_parser = share)]
    pub center_crop: Option<f64>,
    /// Whether images are turned upright by their EXIF orientation; without it, as the weights say.
    #[arg(
        long,
        value_name = "CHOICE",
        value_parser = PossibleValuesParser::new(["ignore", "apply"]).try_map(|name| exif(&name))
    )]
    pub exif: Option<Exif>,
    /// How images are resized; without it, as the weights say, or else bilinear.
    #[arg(
        long,
        value_name = "CHOICE",
        value_parser = PossibleValuesParser::new(["bilinear", "bicubic", "nearest"]).try_map(|name| interpolation(&name))
    )]
    pub interpolation: Option<Interpolation>,
    /// Names of the classes in the order of the outputs; without them, what the weights say.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub classes: Vec<String>,
}

impl Stated {
    /// From a file's metadata; and the values that cannot be, which are not stated, each with its rule.
    pub fn from_metadata(metadata: &Metadata) -> (Self, Vec<String>) {
        let mut faults = Vec::new();
        let size = value(metadata, SIZE, size, &mut faults);
        // Older files are for squeezed images.
        let squeezed = size.filter(|_| !metadata.iter().any(|(name, _)| name == CENTER)).map(|_| 0.0);
        let read = Self {
            size,
            classes: value(metadata, CLASSES, classes, &mut faults).unwrap_or_default(),
            mean: value(metadata, MEAN, mean, &mut faults),
            std: value(metadata, STD, deviation, &mut faults),
            center_crop: value(metadata, CENTER, share, &mut faults).or(squeezed),
            exif: value(metadata, EXIF, exif, &mut faults),
            interpolation: value(metadata, INTERPOLATION, interpolation, &mut faults),
        };
        (read, faults)
    }

    /// What is stated here, or else in `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            classes: if self.classes.is_empty() { other.classes } else { self.classes },
            mean: self.mean.or(other.mean),
            std: self.std.or(other.std),
            size: self.size.or(other.size),
            center_crop: self.center_crop.or(other.center_crop),
            exif: self.exif.or(other.exif),
            interpolation: self.interpolation.or(other.interpolation),
        }
    }

    /// The normalisation, if all of it is stated.
    pub fn normalization(&self) -> Option<Normalization> {
        Some(Normalization { mean: self.mean?, std: self.std? })
    }

    /// The whole, with what is `assumed` for the rest; and the flags that would state what is assumed.
    pub fn complete(self, assumed: Description) -> (Description, Vec<String>) {
        let list = |values: [f32; 3]| values.map(|value| value.to_string()).join(",");
        let Description { normalization: Normalization { mean, std }, size, center_crop, exif, interpolation, .. } =
            assumed;
        let flags = [
            (self.mean.is_none(), format!("--mean {}", list(mean))),
            (self.std.is_none(), format!("--std {}", list(std))),
            (self.size.is_none(), format!("--image-size {size}")),
            (self.center_crop.is_none(), format!("--center-crop {center_crop}")),
            (self.exif.is_none(), format!("--exif {exif}")),
            (self.classes.is_empty(), "--classes 'class 0,...'".into()),
        ];
        let description = Description {
            normalization: Normalization { mean: self.mean.unwrap_or(mean), std: self.std.unwrap_or(std) },
            size: self.size.unwrap_or(size),
            center_crop: self.center_crop.unwrap_or(center_crop),
            exif: self.exif.unwrap_or(exif),
            interpolation: self.interpolation.unwrap_or(interpolation),
            classes: self.classes,
        };
        (description, flags.into_iter().filter_map(|(is_assumed, flag)| is_assumed.then_some(flag)).collect())
    }
}

/// The value of `key`, if there is one that `parse` takes.
fn value<T>(
    metadata: &Metadata,
    key: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
    faults: &mut Vec<String>,
) -> Option<T> {
    let text = &metadata.iter().find(|(name, _)| name == key)?.1;
    let fault = |rule: String| faults.push(format!("{key} {}, which must be {rule}", quoted(text)));
    parse(text).map_err(fault).ok()
}

/// Three numbers, or the rule.
fn three(text: &str, rule: &str, is_valid: impl Fn(f32) -> bool) -> Result<[f32; 3], String> {
    let values = text.split(',').map(|value| value.trim().parse().ok().filter(|value| is_valid(*value)));
    let values: Option<Vec<f32>> = values.collect();
    values.and_then(|values| values.try_into().ok()).ok_or_else(|| format!("three {rule}, separated by commas"))
}

/// A [`Stated::mean`], or the rule for it; as the others below.
fn mean(text: &str) -> Result<[f32; 3], String> {
    three(text, "numbers", f32::is_finite)
}

/// A [`Stated::std`].
fn deviation(text: &str) -> Result<[f32; 3], String> {
    three(text, "numbers above 0", |value| value.is_normal() && value > 0.0)
}

/// A [`Stated::size`].
fn size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| (1..=1024).contains(size));
    size.ok_or_else(|| "a whole number, 1 to 1024".into())
}

/// A [`Stated::center_crop`]; a smaller square would have too few pixels.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| *share == 0.0 || (0.1..=1.0).contains(share));
    share.ok_or_else(|| "0 or a number from 0.1 to 1".into())
}

fn exif(text: &str) -> Result<Exif, String> {
    choice(text, "'ignore' or 'apply'")
}

fn interpolation(text: &str) -> Result<Interpolation, String> {
    choice(text, "'bilinear', 'bicubic' or 'nearest'")
}

/// A choice by its name in the configuration.
fn choice<T: DeserializeOwned>(text: &str, rule: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|_| rule.into())
}

fn classes(text: &str) -> Result<Vec<String>, String> {
    serde_json::from_str(text).map_err(|_| "a list of names in JSON".into())
}
