//! The points of a sweep: `optim.learning_rate=0.05,0.1 run.seed=1,2` is a grid of four, each with its own name. Points
//! may also be drawn at random, from lists and from the intervals of `draw.rs`.
//!
//! Commas in brackets or quotes do not split, so a list can be a value: `parallel.gpu_ids=[0],[0,1]`. Values are
//! interpreted by [`super::resolve()`].

use std::collections::BTreeSet;

use kiln_system::{Error, Result};

use super::Request;
use super::draw::Domain;

/// Most runs of a sweep; more are taken for a typing error.
pub const MOST: usize = 10_000;

/// Draws per point before the lists are taken for exhausted.
const ATTEMPTS: usize = 100;

type Settings = Vec<(String, String)>;

/// The common settings of a sweep and the keys that vary.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// `KEY=VALUE` arguments with one value, and groups.
    pub common: Vec<String>,
    /// Keys with their values, the slowest to change first.
    axes: Vec<(String, Domain)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The name of its directory, as in `learning_rate=0.05,seed=1`.
    pub name: String,
    /// The swept keys with their values.
    pub settings: Vec<(String, String)>,
    /// The command-line arguments of this run.
    pub arguments: Vec<std::ffi::OsString>,
    pub request: Request,
}

impl Grid {
    /// Reads `KEY=VALUE`, `KEY=VALUE,VALUE` and `KEY=interval(LOW,HIGH)`.
    ///
    /// # Errors
    /// [`Error::Usage`] with every complaint: no key with several values, a key or a value given twice, a wrong
    /// interval.
    pub fn read(settings: &[String]) -> Result<Self> {
        let (mut grid, mut lines) = (Self { common: Vec::new(), axes: Vec::new() }, Vec::new());
        for setting in settings {
            let Some((key, text)) = setting.split_once('=') else {
                lines.push(format!("unknown argument '{setting}'; a key to sweep looks like run.seed=1,2,3"));
                continue;
            };
            let domain = match Domain::read(text) {
                Ok(Domain::Values(values)) if values.len() == 1 => {
                    grid.common.push(format!("{key}={}", values[0]));
                    continue;
                }
                Ok(domain) => domain,
                Err(rule) => {
                    lines.push(format!("'{setting}' must be {rule}, as in {key}=tag(log,interval(0.01,1))"));
                    continue;
                }
            };
            if grid.axes.iter().any(|(known, _)| known == key) {
                lines.push(format!("'{key}' is swept twice; give all its values at once, as in {key}=A,B,C"));
            }
            if let Domain::Values(values) = &domain
                && let Some(again) = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value))
            {
                lines.push(format!("'{key}' must have different values, got '{}' twice ('{setting}')", again.1));
            }
            grid.axes.push((key.into(), domain));
        }
        if grid.axes.is_empty() && lines.is_empty() {
            lines.push("nothing is swept; give a key several values, as in optim.learning_rate=0.05,0.1".into());
        }
        if lines.is_empty() { Ok(grid) } else { Err(Error::Usage(lines)) }
    }

    /// Every combination of the values; the last key changes fastest.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are too many, or if a key has an interval.
    pub fn points(&self) -> Result<Vec<Settings>> {
        let mut points = vec![Vec::new()];
        for (key, domain) in &self.axes {
            let Domain::Values(values) = domain else {
                return Err(Error::usage(format!(
                    "'{key}' has an interval; give the number of points with --samples N"
                )));
            };
            if points.len().saturating_mul(values.len()) > MOST {
                return Err(Error::usage(format!(
                    "a sweep must have at most {MOST} runs; give fewer values, or draw random points with --samples N"
                )));
            }
            let with = |point: &Settings, value: &String| {
                point.iter().cloned().chain([(key.clone(), value.clone())]).collect()
            };
            points = points.iter().flat_map(|point| values.iter().map(move |value| with(point, value))).collect();
        }
        Ok(points)
    }

    /// `count` different points, drawn at random. More points of the same seed begin with these.
    ///
    /// # Errors
    /// [`Error::Usage`] if the values have fewer combinations.
    pub fn drawn(&self, count: usize, seed: u64) -> Result<Vec<Settings>> {
        let (mut seen, mut points) = (BTreeSet::new(), Vec::new());
        for nth in 0..count.saturating_mul(ATTEMPTS) {
            let draw = |(key, domain): &(String, Domain)| (key.clone(), domain.draw(key, seed, nth));
            let point: Settings = self.axes.iter().map(draw).collect();
            if seen.insert(point.clone()) {
                points.push(point);
            }
            if points.len() == count {
                return Ok(points);
            }
        }
        let found = points.len();
        Err(Error::usage(format!(
            "--samples is '{count}', but {found} different points were found; give more values, or --samples {found}"
        )))
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

/// Whether `text` is several values or an interval.
pub fn is_list(text: &str) -> bool {
    !matches!(Domain::read(text), Ok(Domain::Values(values)) if values.len() == 1)
}
