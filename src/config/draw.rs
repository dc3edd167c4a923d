//! The values of a swept key: a list, or an interval to draw from.
//!
//! The notation is from Hydra's Optuna sweeper: `interval(0.1,0.9)`, `tag(log,interval(0.01,1))` on a logarithmic
//! scale, `int(interval(8,64))` for whole numbers, and `choice(A,B)`, which is the list `A,B`.

use sha2::{Digest, Sha256};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Domain {
    /// Any of these texts.
    Values(Vec<String>),
    /// Numbers from `low` to `high`.
    Interval { low: f64, high: f64, is_log: bool, is_whole: bool },
}

impl Domain {
    /// Reads what follows `KEY=`.
    ///
    /// # Errors
    /// The rule, if it is an interval that does not follow it.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        const RULE: &str = "interval(LOW,HIGH) with LOW below HIGH, above 0 in tag(log,...), and with a whole number \
                            between them in int(...)";
        if let Some(inside) = call(text, "choice") {
            return Ok(Self::Values(split(inside)));
        }
        let (mut rest, mut is_log, mut is_whole) = (text, false, false);
        loop {
            if let Some(inside) = call(rest, "tag") {
                let tagged = inside.split_once(',').filter(|(tag, _)| tag.trim() == "log");
                (rest, is_log) = (tagged.ok_or(RULE)?.1, true);
            } else if let Some(inside) = call(rest, "int") {
                (rest, is_whole) = (inside, true);
            } else {
                break;
            }
        }
        let Some(inside) = call(rest, "interval") else {
            return if is_log || is_whole { Err(RULE) } else { Ok(Self::Values(split(text))) };
        };
        let (low, high) = inside.split_once(',').ok_or(RULE)?;
        let [low, high] = [low, high].map(|bound| bound.trim().parse::<f64>().ok().filter(|it| it.is_finite()));
        let (mut low, mut high) = low.zip(high).ok_or(RULE)?;
        if is_whole {
            (low, high) = (low.ceil(), high.floor());
        }
        let is_valid = (low < high || is_whole && low == high) && (low > 0.0 || !is_log);
        if is_valid { Ok(Self::Interval { low, high, is_log, is_whole }) } else { Err(RULE) }
    }

    /// The value of `key` in draw `nth`: it depends only on the seed, not on other draws.
    pub(super) fn draw(&self, key: &str, seed: u64, nth: usize) -> String {
        let hash = Sha256::digest(format!("{seed} {nth} {key}"));
        let word = hash.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte));
        let share = (word >> 11) as f64 * (-53_f64).exp2();
        match *self {
            Self::Values(ref values) => values[(share * values.len() as f64) as usize].clone(),
            Self::Interval { low, high, is_log, is_whole } => {
                // Each whole number stands for the interval from itself to the next one.
                let end = if is_whole { high + 1.0 } else { high };
                let value = if is_log { low * (end / low).powf(share) } else { low + (end - low) * share };
                if is_whole { value.floor().clamp(low, high).to_string() } else { rounded(value, low, high) }
            }
        }
    }
}

/// Four digits, as the value becomes part of a directory's name.
fn rounded(value: f64, low: f64, high: f64) -> String {
    format!("{value:.3e}").parse().unwrap_or(value).clamp(low, high).to_string()
}

/// What is in the parentheses of `name(...)`.
fn call<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.trim().strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')')
}

/// The values between commas; commas in brackets or quotes do not split.
fn split(text: &str) -> Vec<String> {
    let (mut values, mut depth, mut quote) = (vec![String::new()], 0_usize, None);
    for letter in text.chars() {
        match (letter, quote) {
            (_, Some(open)) if letter == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(letter),
            ('[' | '(', None) => depth += 1,
            (']' | ')', None) => depth = depth.saturating_sub(1),
            (',', None) if depth == 0 => {
                values.push(String::new());
                continue;
            }
            _ => {}
        }
        values.last_mut().expect("there is always a value").push(letter);
    }
    values
}
