//! The accuracy of the runs of a sweep against each setting that it varies.

use std::collections::BTreeMap;

use super::chart::{Across, Chart, Scale};
use super::results::{Numbers, percent};
use super::run::Run;
use super::series::{Look, Series};
use super::table::{Cell, Table};

/// Smallest ratio of the largest to the smallest value for a logarithmic axis.
const WIDE: f64 = 20.0;

/// The best accuracies of the runs with each value of one setting.
pub(super) struct Varied<'a> {
    key: &'a str,
    values: BTreeMap<&'a str, Vec<f64>>,
}

/// The settings that the runs vary, with the runs that have an accuracy.
pub(super) fn varied(runs: &[Run]) -> Vec<Varied<'_>> {
    let mut all: Vec<Varied<'_>> = Vec::new();
    for run in runs {
        let Some((accuracy, _)) = Numbers::of(run).best else { continue };
        for (key, value) in &run.varied {
            let place = all.iter().position(|it| it.key == key).unwrap_or(all.len());
            if place == all.len() {
                all.push(Varied { key, values: BTreeMap::new() });
            }
            all[place].values.entry(value).or_default().push(accuracy);
        }
    }
    all.retain(|it| it.values.len() > 1);
    all
}

impl Varied<'_> {
    /// The accuracies over the values and their mean at each; `None` if values are no numbers.
    pub(super) fn chart(&self) -> Option<Chart> {
        let number = |(value, accuracies): (&&str, _)| Some((value.parse::<f64>().ok()?, accuracies));
        let mut values: Vec<(f64, &Vec<f64>)> = self.values.iter().map(number).collect::<Option<_>>()?;
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let each = values.iter().flat_map(|(x, accuracies)| accuracies.iter().map(|it| [*x, 100.0 * it])).collect();
        let mean = values.iter().map(|(x, accuracies)| [*x, 100.0 * mean(accuracies)]).collect();
        let each = Series { look: Look::Points, ..Series::new("a run", 0, each) };
        let (low, high) = (values.first()?.0, values.last()?.0);
        let title = "value of the setting";
        let across = if low > 0.0 && high / low >= WIDE { Across::Logarithmic(title) } else { Across::Linear(title) };
        let title = format!("Best accuracy, %, against {}", self.key);
        Some(Chart {
            title,
            series: vec![each, Series::new("mean", 1, mean)],
            scale: Scale::Linear,
            across,
            marks: vec![],
        })
    }

    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(&format!("Best accuracy for each {}", self.key), ["Value", "Runs", "Best", "Mean"]);
        table.rows.extend(self.values.iter().map(|(value, accuracies)| {
            let best = accuracies.iter().copied().fold(0.0, f64::max);
            let numbers = [accuracies.len().to_string(), percent(best), percent(mean(accuracies))];
            std::iter::once(Cell::text(value)).chain(numbers.map(Cell::number)).collect()
        }));
        table
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
