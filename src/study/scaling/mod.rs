//! Scaling of training: measured runs of several sizes, compared and modelled.
//!
//! [`Sizes`] are the requested sizes, [`measurement`] is one measured run, [`curve`] compares runs that differ in the
//! number of replicas only; [`model`] is the model of the step time with its sources, [`fit`] determines its
//! coefficients and their confidence by [`least_squares`]; [`table`], [`charts`] and [`page`] present the results.
//!
//! Speed-up and efficiency compare images per second with the smallest measured configuration of the same mode, for
//! weak and strong scaling. Predictions assume a device per replica.

pub mod charts;
pub mod curve;
pub mod fit;
pub mod least_squares;
pub mod measurement;
pub mod model;
pub mod page;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use curve::{Curve, Prediction, Row};
pub use measurement::{Measurement, Mode};

use super::write;
use crate::error::{Error, Result};

/// The sizes that are always predicted, in replicas.
const SIZES: [usize; 3] = [8, 16, 64];

/// The sizes to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Numbers of replicas.
    pub replicas: Vec<usize>,
    /// Numbers of processes; sizes with fewer replicas are left out.
    pub processes: Vec<usize>,
    /// Weak or strong scaling, or both.
    pub modes: Vec<Mode>,
    /// Measured steps of each run.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// CPU threads per replica; 0 means the number that the largest size leaves each.
    pub threads: usize,
    /// The directory of the analysis.
    pub output: PathBuf,
}

/// Measurements with their comparison and models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// Hardware and settings, from the caller.
    pub about: BTreeMap<String, String>,
    /// Notes for the reader, a sentence or two each.
    pub caveats: Vec<String>,
    /// The measurements, sorted by mode, replicas and processes.
    pub measurements: Vec<Measurement>,
    /// The same relative to the smallest of its mode.
    pub rows: Vec<Row>,
    /// The rows as curves, with a model each.
    pub curves: Vec<Curve>,
}

impl Analysis {
    /// Compares and fits measurements, in any order; `about` describes hardware and settings.
    ///
    /// # Errors
    /// [`Error::Usage`] without a measurement; [`Error::Data`] for one that is impossible, occurs twice, or has another
    /// batch size than the others of its mode.
    pub fn new(mut measurements: Vec<Measurement>, about: BTreeMap<String, String>) -> Result<Self> {
        if measurements.is_empty() {
            return Err(Error::usage("nothing was measured; say which sizes to measure, as in --replicas 1,2,4"));
        }
        measurements.iter().try_for_each(Measurement::check)?;
        measurements.sort_by_key(|it| (it.mode, it.replicas, it.processes));
        measurements.windows(2).try_for_each(|two| differ(&two[0], &two[1]))?;
        let rows: Vec<Row> = measurements
            .chunk_by(|a, b| a.mode == b.mode)
            .flat_map(|all| all.iter().map(|it| Row::new(it, &all[0])))
            .collect();
        let curves = [Mode::Weak, Mode::Strong].into_iter().flat_map(|mode| curve::curves(mode, &rows)).collect();
        Ok(Self { about, caveats: Vec::new(), measurements, rows, curves }.predict(&[]))
    }

    /// Predicts 8, 16 and 64 replicas and the given sizes, unless measured.
    pub fn predict(mut self, replicas: &[usize]) -> Self {
        let sizes = [&SIZES, replicas].concat();
        self.curves.iter_mut().for_each(|curve| curve.predict(&sizes));
        self.caveats = self.caveats();
        self
    }

    /// Writes `scaling.csv`, `scaling.json`, `scaling.svg`, `scaling.png` and, last, `scaling.html`.
    ///
    /// # Errors
    /// [`Error::Io`] naming the file that cannot be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let figure = charts::main(&self.curves);
        write(directory, "scaling", &figure, table::csv(&self.rows), self, page::page(self))
    }

    fn caveats(&self) -> Vec<String> {
        let mut caveats = Vec::new();
        let shared: BTreeSet<usize> =
            self.rows.iter().filter(|row| row.devices_shared).map(|row| row.replicas).collect();
        if !shared.is_empty() {
            let sizes: Vec<String> = shared.iter().map(ToString::to_string).collect();
            let mut text = format!(
                "Replicas shared devices or processor cores at {} replicas: they took turns, and could not speed each \
                 other up. Those numbers are the cost of more replicas on this machine, not what more devices would \
                 gain.",
                sizes.join(", ")
            );
            text += if self.curves.iter().any(Curve::is_shared) {
                " Fewer than two sizes had a device for each replica, so the model had to be fitted to shared ones: \
                  its predictions are not those of more devices."
            } else {
                " The models leave them out."
            };
            caveats.push(text);
        }
        if self.curves.iter().any(|curve| !curve.predictions.is_empty()) {
            caveats.push(
                "Predictions assume a device of its own for every replica, all of the kind that was measured, and a \
                 network that stays as it was; nothing in the measurements can confirm that."
                    .into(),
            );
        }
        for curve in self.curves.iter().filter(|curve| curve.is_cut_off()) {
            let title = table::title(curve);
            caveats.push(format!(
                "Noise makes the fitted model scale better than ideal ({title}), which is impossible: predictions stop \
                 at an efficiency of 100 %. Measure more sizes, or more --steps."
            ));
        }
        for curve in self.curves.iter().filter(|curve| curve.fit.is_none()) {
            let title = table::title(curve);
            caveats.push(format!("With one size there is no model and no prediction ({title}); measure two or more."));
        }
        caveats
    }
}

/// Two neighbouring measurements of a mode must differ in size and agree in the quantity that the mode keeps constant.
fn differ(a: &Measurement, b: &Measurement) -> Result<()> {
    if a.mode != b.mode {
        return Ok(());
    }
    if (a.replicas, a.processes) == (b.replicas, b.processes) {
        return Err(Error::Data(format!("'{}' was measured twice; give each size once", a.name())));
    }
    let [first, second] = [a, b].map(|it| it.images_per_step as u128);
    let (is_equal, what) = match a.mode {
        Mode::Weak => (first * b.replicas as u128 == second * a.replicas as u128, "images per replica"),
        Mode::Strong => (first == second, "images per step"),
    };
    if is_equal {
        return Ok(());
    }
    let names = format!("'{}' and '{}'", a.name(), b.name());
    Err(Error::Data(format!("{names} do not have the same {what}; measure both with the same --batch-size")))
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.curves.iter().try_for_each(|curve| writeln!(f, "{}", table::text(curve)))?;
        self.caveats.iter().try_for_each(|caveat| writeln!(f, "note: {caveat}"))
    }
}
