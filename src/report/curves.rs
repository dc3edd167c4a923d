//! The charts of runs. A chart of a single run shows related quantities; with several runs, each chart shows one
//! quantity with a curve per run. Throughput and memory are shown over time, everything else over epochs.

use super::chart::{Across, Anchor, Chart, Figure, Scale, Shape, WIDTH, time_unit};
use super::palette::Ink;
use super::run::Run;
use super::series::Series;
use crate::metrics::{EpochRecord, StepRecord};

#[derive(Clone, Copy)]
enum Source {
    Step(Quantity),
    /// The same with a moving average.
    Noisy(Quantity),
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

const REST: [Plot; 2] = [
    Plot { title: "Learning rate", scale: Scale::FromZero, marked: false, curves: &[("", Source::Step(|it| it.lr))] },
    Plot {
        title: "Gradient norm, before clipping",
        scale: Scale::MaybeLogarithmic,
        marked: false,
        curves: &[("", Source::Noisy(|it| it.grad_norm))],
    },
];

type Quantity = fn(&StepRecord) -> f64;
type Measured = fn(&StepRecord) -> Option<f64>;

/// What is shown over time, with a curve per process; not every step has it.
const OVER_TIME: [(&str, Measured); 2] = [
    ("Throughput, images/s", |it| it.images_per_second),
    ("Memory of a process, GiB", |it| it.memory.map(|bytes| bytes as f64 / (1u64 << 30) as f64)),
];

/// All charts for which there is data.
pub fn charts(runs: &[Run]) -> Vec<Chart> {
    let over_epochs = [&ACCURACY, &LOSS].into_iter().chain(&REST).flat_map(|plot| plot.charts(runs));
    over_epochs.chain(OVER_TIME.into_iter().filter_map(|(title, value)| over_time(title, value, runs))).collect()
}

/// A quantity over the time of the runs: of one run with a curve per process, of several with one per run.
fn over_time(title: &str, value: Measured, runs: &[Run]) -> Option<Chart> {
    let named: Vec<(String, &[StepRecord])> = match runs {
        [run] if run.others.is_empty() => vec![(String::new(), &run.steps)],
        [run] => {
            let all = std::iter::once((&0, &run.steps)).chain(&run.others);
            all.map(|(rank, steps)| (format!("process {rank}"), &steps[..])).collect()
        }
        runs => runs.iter().map(|run| (run.name.clone(), &run.steps[..])).collect(),
    };
    let times = named.iter().flat_map(|(_, steps)| steps.iter().map(|it| it.seconds));
    let (of_time, unit) = time_unit(times.fold(0.0, f64::max));
    let curve = |(style, (name, steps)): (usize, &(String, &[StepRecord]))| {
        let points = steps.iter().filter_map(|it| Some([it.seconds / unit, value(it)?])).collect();
        Some(Series::new(name, style, points)).filter(|series| series.ends().is_some())
    };
    let series: Vec<Series> = named.iter().enumerate().filter_map(curve).collect();
    let marks = match runs {
        [run] => run.generations.iter().skip(1).map(|it| it.seconds / unit).collect(),
        _ => Vec::new(),
    };
    let chart = Chart { title: title.into(), series, scale: Scale::FromZero, across: Across::Linear(of_time), marks };
    Some(chart).filter(|chart| !chart.series.is_empty())
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
    Figure::stack(&charts)
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
        Chart { title: self.title.into(), series, scale: self.scale, across: Across::Linear("epoch"), marks }
    }

    fn of_runs(&self, name: &str, source: Source, runs: &[Run]) -> Chart {
        let title = if name.is_empty() { self.title.into() } else { format!("{}: {name}", self.title) };
        let all = runs.iter().enumerate();
        let series = all.filter_map(|(at, run)| source.series(run, &run.name, at).map(Series::bare)).collect();
        Chart { title, series, scale: self.scale, across: Across::Linear("epoch"), marks: Vec::new() }
    }
}

impl Source {
    /// The curve of a run; `None` without a finite value.
    fn series(self, run: &Run, name: &str, style: usize) -> Option<Series> {
        let steps = |value: Quantity| run.steps.iter().map(|it| [it.epoch, value(it)]).collect();
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
