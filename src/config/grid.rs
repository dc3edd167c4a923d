//! A grid of settings: `optim.learning_rate=0.05,0.1 run.seed=1,2` is four points, each with its own name.
//!
//! Commas in brackets or quotes do not split, so a list can be a value: `parallel.gpu_ids=[0],[0,1]`. Values are
//! interpreted by [`super::resolve()`].

use super::Request;
use crate::error::{Error, Result};

/// Most runs of a sweep; more are taken for a typing error.
const MOST: usize = 10_000;

/// The common settings of a sweep and the keys that vary.
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
    /// The name of its directory, as in `learning_rate=0.05,seed=1`.
    pub name: String,
    /// The swept keys with their values.
    pub settings: Vec<(String, String)>,
    /// The command-line arguments of this run.
    pub arguments: Vec<std::ffi::OsString>,
    /// The same as a request.
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

    /// The name of a run with these settings: keys without their section, unless that is ambiguous.
    pub fn name(&self, point: &[(String, String)]) -> String {
        let short = |key: &str| key.rsplit('.').next().unwrap_or_default().to_string();
        let called = |key: &str| {
            let same = self.axes.iter().filter(|(other, _)| short(other) == short(key)).count();
            if same > 1 { key.to_string() } else { short(key) }
        };
        let part = |(key, value): &(String, String)| format!("{}={value}", called(key));
        let name = point.iter().map(part).collect::<Vec<_>>().join(",");
        // A path separator would make nested directories.
        name.replace(['/', '\\'], "-")
    }
}

/// Whether `text` is several values.
pub fn is_list(text: &str) -> bool {
    split(text).len() > 1
}

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
