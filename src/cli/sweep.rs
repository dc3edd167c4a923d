//! `train sweep`: from arguments to the points of a grid, each with the arguments that train it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use kiln_system::Result;

use super::refusal::whole;
use super::training::Training;
use crate::config::Request;
use crate::config::grid::{Grid, MOST, Point};
use crate::trainer::{SweepOptions, sweep};

#[derive(Debug, Args)]
#[command(mut_arg("arguments", |it| it.help("Flags and settings of all runs, as for train itself")))]
pub struct Sweep {
    /// Values to combine, as in optim.learning_rate=0.05,0.1 run.seed=1,2 for four runs; commas in brackets or quotes
    /// do not split. A single value, or a group as in experiment=quickstart, is for all runs. With --samples also
    /// interval(LOW,HIGH), tag(log,interval(LOW,HIGH)) on a logarithmic scale, and int(...) for whole numbers.
    #[arg(value_name = "KEY=VALUE,VALUE", required = true)]
    settings: Vec<String>,
    /// Draw this many points at random instead of training every combination; a larger number later keeps the first
    /// points.
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=MOST as u64))]
    samples: Option<usize>,
    /// Seed of the random points; the seed of the runs is --seed, after the --.
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u64>(0..=u64::MAX), requires = "samples")]
    sample_seed: u64,
    /// Successive halving: train all runs for a few epochs, continue the best of every N for N times as many epochs,
    /// and so on. 3 is usual.
    #[arg(long, value_name = "N", value_parser = whole::<usize>(2..=100))]
    halving: Option<usize>,
    /// Train this many runs at a time; each gets its share of the devices and threads.
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<usize>(1..=1024))]
    jobs: usize,
    /// Devices of all runs together; without it, every run uses its own, as in -- --gpu-ids 0,1.
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = whole::<usize>(0..=1023))]
    gpu_ids: Vec<usize>,
    /// Directory for the runs, sweep.csv and sweep.html. Complete runs there are not repeated. Without it, the
    /// directory of an earlier identical command, or the next free sweeps/NNNN.
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) training: Training,
}

impl Sweep {
    /// The runs, each with its request.
    pub fn points(&self) -> Result<Vec<Point>> {
        let Training { arguments, request } = &self.training;
        let grid = Grid::read(&self.settings)?;
        let point = |settings: Vec<(String, String)>| {
            let own: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let words = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
            let all = [&grid.common[..], &request.arguments, &own].concat();
            Point {
                name: grid.name(&settings),
                settings,
                arguments: [&words(&grid.common)[..], arguments, &words(&own)].concat(),
                request: Request { arguments: all, ..request.clone() },
            }
        };
        let settings = match self.samples {
            Some(count) => grid.drawn(count, self.sample_seed)?,
            None => grid.points()?,
        };
        Ok(settings.into_iter().map(point).collect())
    }
}

impl Sweep {
    pub(super) fn run(self) -> Result<u8> {
        let points = self.points()?;
        let options = SweepOptions { halving: self.halving, jobs: self.jobs, devices: self.gpu_ids };
        sweep(self.output_dir, &points, &options)
    }
}
