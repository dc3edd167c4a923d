//! The fastest placement of a training: how many replicas and stages, and where the model is cut.
//!
//! [`Measured`] describes the model and the devices, [`Experiment`] what a placement must not change. [`Planning`]
//! compares all placements: [`cuts()`] lists every cut of a model, `forecast` predicts the step time, memory and
//! traffic of one, [`pipeline`] its forward and backward passes; [`text`] presents the results.
//!
//! The best cut is exact where all are compared, up to a hundred thousand for a number of stages; of more, the search
//! begins with balanced stages and moves one split point at a time. The prediction is a model. Harlap et al. 2018,
//! "PipeDream: Fast and Efficient Pipeline Parallel DNN Training", and Fan et al. 2021, "DAPPLE: A Pipelined Data
//! Parallel Approach for Training Large Models", search the same space by dynamic programming.

mod forecast;
mod measured;
pub mod pipeline;
pub mod text;

pub use forecast::{Forecast, Layout};
pub use measured::{Experiment, Measured, Room, Unit, cuts};

use kiln_engine::parallel::cut;
use kiln_system::{Error, Result};
use measured::{MOST_CUTS, count_cuts, neighbours};

/// All placements of an experiment, the best cut of each number of replicas and stages.
#[derive(Debug, Clone, PartialEq)]
pub struct Planning {
    /// Those that fit into memory first, the fastest first.
    pub rows: Vec<Forecast>,
    pub experiment: Experiment,
    /// How many cuts were compared, of all numbers of replicas and stages.
    pub compared: usize,
}

impl Planning {
    /// Compares all placements of `experiment` on the devices of `measured`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none, because replicas are given and do not fill the devices.
    pub fn new(measured: &Measured, experiment: Experiment) -> Result<Self> {
        let mut compared = 0;
        let best = |[replicas, stages]: [usize; 2]| {
            let mut forecast = |cut| {
                compared += 1;
                let micro_batches = experiment.micro_batches / replicas;
                let layout = Layout { replicas, micro_batches, cut, shares: Vec::new() };
                measured.forecast(layout, experiment.batch_size)
            };
            let units = measured.units.len();
            if count_cuts(units, stages) <= MOST_CUTS {
                return cuts(units, stages).into_iter().map(forecast).min_by(Forecast::compare);
            }
            let costs = measured.times(replicas * stages).first()?;
            let costs: Vec<f64> = costs.iter().map(|unit| unit.forward + unit.backward).collect();
            let mut best = forecast(cut(&costs, stages, &[]).ok()?);
            loop {
                let next = neighbours(&best.layout.cut).into_iter().map(&mut forecast).min_by(Forecast::compare)?;
                if next.compare(&best).is_ge() {
                    return Some(best);
                }
                best = next;
            }
        };
        let shapes = experiment.shapes(measured.devices, measured.units.len());
        let mut rows: Vec<Forecast> = shapes.into_iter().filter_map(best).collect();
        // More replicas than devices, where a faster device gains by hosting more of them.
        for replicas in experiment.finer(measured.devices) {
            let Some(shares) = measured.shares(replicas) else { continue };
            compared += 1;
            let (micro_batches, cut) = (experiment.micro_batches / replicas, cuts(measured.units.len(), 1).concat());
            rows.push(measured.forecast(Layout { replicas, micro_batches, cut, shares }, experiment.batch_size));
        }
        if rows.is_empty() {
            let (devices, replicas) = (measured.devices, experiment.replicas.unwrap_or(1));
            return Err(Error::usage(format!(
                "every device needs a stage of a replica, got '{devices}' devices for '{replicas}' replicas of a model \
                 of {} units; use the same number of devices for each replica, or give --stages N",
                measured.units.len()
            )));
        }
        // A stable sort: of equals the one with fewer replicas and stages.
        rows.sort_by(Forecast::compare);
        Ok(Self { rows, experiment, compared })
    }

    /// The fastest one that fits, or, if none does, the fastest.
    pub fn choice(&self) -> &Forecast {
        &self.rows[0]
    }
}
