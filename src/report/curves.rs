//! The charts of runs. A chart of a single run shows related quantities; with several runs, each chart shows one
//! quantity with a curve per run.

use super::chart::{Across, Anchor, Chart, Figure, Scale, Shape, WIDTH};
use super::palette::Ink;
use super::run::Run;
use super::series::Series;
use crate::metrics::{EpochRecord, StepRecord};

#[derive(Clone, Copy)]
enum Source {
    Step(fn(&StepRecord) -> f64),
    /// The same with a moving average.
    Noisy(fn(&StepRecord) -> f64),
    Epoch(fn(&EpochRecord) -> f64),
}

struct Plot {
    title: &'static str,
    scale: Scale,
    marked: bool,
    /// Names and sources of its curves; a single one needs no name.
    curves: &'static [(&'static str, Source)],
}

const ACCURACY: Plot = Plot {
    title: "Accuracy, %",
    scale: Scale::Linear,
    marked: false,
    curves: &[
        ("validation", Source::Epoch(|it| 100.0 * it.val_accuracy)),
        ("train", Source::Noisy(|it| 100.0 * it.accuracy)),
        ("validation, top-5", Source::Epoch(|it| 100.0 * it.val_top5)),
    ],
};

const LOSS: Plot = Plot {
    title: "Loss",
    scale: Scale::MaybeLogarithmic,
    marked: true,
    curves: &[("validation", Source::Epoch(|it| it.val_loss)), ("train", Source::Noisy(|it| it.loss))],
};

const REST: [Plot; 3] = [
    Plot { title: "Learning rate", scale: Scale::FromZero, marked: false, curves: &[("", Source::Step(|it| it.lr))] },
    Plot {
        title: "Throughput, images/s",
        scale: Scale::FromZero,
        marked: true,
        curves: &[("", Source::Step(|it| it.images_per_second.unwrap_or(f64::NAN)))],
    },
    Plot {
        title: "Gradient norm, before clipping",
        scale: Scale::MaybeLogarithmic,
        marked: false,
        curves: &[("", Source::Noisy(|it| it.grad_norm))],
    },
];

/// All charts for which there is data.
pub fn charts(runs: &[Run]) -> Vec<Chart> {
    [&ACCURACY, &LOSS].into_iter().chain(&REST).flat_map(|plot| plot.charts(runs)).collect()
}

/// The main curve: validation accuracy above the losses.
pub fn main(runs: &[Run]) -> Figure {
    // The first accuracy chart shows the validation, with one run or several.
    let accuracy = ACCURACY.charts(runs).into_iter().take(1);
    let charts: Vec<Chart> = accuracy.chain(LOSS.charts(runs)).collect();
    if charts.is_empty() {
        let words = "no step is recorded yet".to_string();
        let text = Shape::Text([WIDTH / 2.0, 30.0], Anchor::Middle, words.clone(), Ink::Label);
        return Figure { width: WIDTH, height: 60.0, shapes: vec![text], words };
    }
    Figure::stack(charts.iter().map(Chart::figure).collect())
}

impl Plot {
    fn charts(&self, runs: &[Run]) -> Vec<Chart> {
        let charts = match runs {
            [run] => vec![self.of_run(run)],
            runs => self.curves.iter().map(|(name, source)| self.of_runs(name, *source, runs)).collect(),
        };
        charts.into_iter().filter(|chart| !chart.series.is_empty()).collect()
    }

    fn of_run(&self, run: &Run) -> Chart {
        let all = self.curves.iter().enumerate();
        let series = all.filter_map(|(at, (name, source))| source.series(run, name, at)).collect();
        let marks = run.generations.iter().skip(1).filter_map(|it| run.epoch_at(it.step));
        let marks = if self.marked { marks.collect() } else { Vec::new() };
        Chart { title: self.title.into(), series, scale: self.scale, across: Across::Epochs, marks }
    }

    fn of_runs(&self, name: &str, source: Source, runs: &[Run]) -> Chart {
        let title = if name.is_empty() { self.title.into() } else { format!("{}: {name}", self.title) };
        let all = runs.iter().enumerate();
        let series = all.filter_map(|(at, run)| source.series(run, &run.name, at).map(Series::bare)).collect();
        Chart { title, series, scale: self.scale, across: Across::Epochs, marks: Vec::new() }
    }
}

impl Source {
    /// The curve of a run; `None` without a finite value.
    fn series(self, run: &Run, name: &str, style: usize) -> Option<Series> {
        let steps = |value: fn(&StepRecord) -> f64| run.steps.iter().map(|it| [it.epoch, value(it)]).collect();
        let series = match self {
            Self::Step(value) => Series::new(name, style, steps(value)),
            Self::Noisy(value) => Series::new(name, style, steps(value)).smooth(),
            Self::Epoch(value) => {
                let points = run.epochs.iter().map(|it| [it.epoch as f64, value(it)]).collect();
                Series::new(name, style, points)
            }
        };
        series.ends().map(|_| series)
    }
}
