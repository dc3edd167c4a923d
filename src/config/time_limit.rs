//! Durations of whole seconds as text: `90s`, `2h30m`, `1d`; the empty string for none. A module for `#[serde(with)]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];
const RULE: &str = "a time, as in 90s, 45m, 2h30m or 1d, or empty for no limit";

/// Parses a duration such as `2h30m`; each of the units d, h, m and s at most once and in this order.
///
/// # Errors
/// The rule, as a phrase, if the text has another form.
pub fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    let mut seconds = Some(0_u64);
    for (unit, length) in UNITS {
        if let Some((count, tail)) = rest.split_once(unit) {
            let count: u64 = count.trim().parse().map_err(|_| RULE)?;
            seconds = seconds.and_then(|sum| count.checked_mul(length)?.checked_add(sum));
            rest = tail;
        }
    }
    match seconds {
        Some(seconds) if rest.trim().is_empty() => Ok(Duration::from_secs(seconds)),
        _ => Err(RULE.into()),
    }
}

/// The shortest text that [`parse`] reads as `time`; empty for zero.
pub fn format(time: Duration) -> String {
    let mut rest = time.as_secs();
    let mut text = String::new();
    for (unit, length) in UNITS {
        if rest >= length {
            text.push_str(&format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    text
}

pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*time))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}
