//! A grid of settings: `optim.learning_rate=0.05,0.1 run.seed=1,2` is four points, each with a name of its own.
//!
//! Only commas split, and none of those in brackets or quotes, so that a list is a value: `parallel.gpu_ids=[0],[0,1]`.
//! What a value means is left to [`super::resolve()`].

use super::Request;
use crate::error::{Error, Result};

/// More runs than this are a slip of the finger.
const MOST: usize = 10_000;

/// What is the same in all runs of a sweep, and what is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// `KEY=VALUE` arguments with one value, and groups.
    pub common: Vec<String>,
    /// Keys with their values, the slowest to change first.
    axes: Vec<(String, Vec<String>)>,
}

/// One run of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Its settings, as in `learning_rate=0.05,seed=1`: the name of its directory.
    pub name: String,
    /// The keys that are swept, with their values.
    pub settings: Vec<(String, String)>,
    /// The arguments for training it.
    pub arguments: Vec<std::ffi::OsString>,
    /// The same as a configuration.
    pub request: Request,
}

impl Grid {
    /// Reads `KEY=VALUE` and `KEY=VALUE,VALUE`.
    ///
    /// # Errors
    /// [`Error::Usage`] with every complaint: no key with several values, a key or a value given twice, too many runs.
    pub fn read(settings: &[String]) -> Result<Self> {
        let (mut grid, mut lines) = (Self { common: Vec::new(), axes: Vec::new() }, Vec::new());
        for setting in settings {
            let Some((key, text)) = setting.split_once('=') else {
                lines.push(format!("unknown argument '{setting}'; a key to sweep reads like run.seed=1,2,3"));
                continue;
            };
            let values = split(text);
            if values.len() == 1 {
                grid.common.push(setting.clone());
                continue;
            }
            if grid.axes.iter().any(|(known, _)| known == key) {
                lines.push(format!("'{key}' is swept twice; give all its values at once, as in {key}=A,B,C"));
            }
            if let Some(again) = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value)) {
                lines.push(format!("'{key}' must have different values, got '{}' twice ('{setting}')", again.1));
            }
            grid.axes.push((key.into(), values));
        }
        let runs = grid.axes.iter().try_fold(1_usize, |runs, (_, values)| runs.checked_mul(values.len()));
        if grid.axes.is_empty() && lines.is_empty() {
            lines.push("nothing is swept; give a key several values, as in optim.learning_rate=0.05,0.1".into());
        } else if runs.is_none_or(|runs| runs > MOST) {
            lines.push(format!("a sweep must have at most {MOST} runs; give fewer values"));
        }
        if lines.is_empty() { Ok(grid) } else { Err(Error::Usage(lines)) }
    }

    /// The settings of every run; the last key changes fastest.
    pub fn points(&self) -> Vec<Vec<(String, String)>> {
        self.axes.iter().fold(vec![Vec::new()], |points, (key, values)| {
            let with = |point: &Vec<(String, String)>, value: &String| {
                point.iter().cloned().chain([(key.clone(), value.clone())]).collect()
            };
            points.iter().flat_map(|point| values.iter().map(move |value| with(point, value))).collect()
        })
    }

    /// What a run with these settings is called: keys without their section, unless two would be called the same.
    pub fn name(&self, point: &[(String, String)]) -> String {
        let short = |key: &str| key.rsplit('.').next().unwrap_or_default().to_string();
        let called = |key: &str| {
            let same = self.axes.iter().filter(|(other, _)| short(other) == short(key)).count();
            if same > 1 { key.to_string() } else { short(key) }
        };
        let part = |(key, value): &(String, String)| format!("{}={value}", called(key));
        let name = point.iter().map(part).collect::<Vec<_>>().join(",");
        // One directory, not several.
        name.replace(['/', '\\'], "-")
    }
}

/// The values between commas.
fn split(text: &str) -> Vec<String> {
    let (mut values, mut depth, mut quote) = (vec![String::new()], 0_usize, None);
    for letter in text.chars() {
        match (letter, quote) {
            (_, Some(open)) if letter == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(letter),
            ('[', None) => depth += 1,
            (']', None) => depth = depth.saturating_sub(1),
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
