//! Floating-point numbers in JSON that read back to the same bits, NaN included: as text.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// An f64 as the shortest text that reads back to the same value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Exact(#[serde(with = "self")] pub f64);

pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{number:?}"))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| D::Error::custom(format!("'{text}' is not a number")))
}
