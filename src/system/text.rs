//! Types that are text in files. A module for `#[serde(with)]`.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer, de};

pub fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// What stands for a text in a file: TOML has numbers and lists without quotes.
#[derive(Deserialize)]
#[serde(untagged, expecting = "text")]
enum Written {
    Text(String),
    Number(i64),
    List(Vec<i64>),
}

pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let text = match Written::deserialize(deserializer)? {
        Written::Text(text) => text,
        Written::Number(number) => number.to_string(),
        Written::List(numbers) => numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(","),
    };
    text.parse().map_err(de::Error::custom)
}
