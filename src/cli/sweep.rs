//! `train sweep`: from arguments to the points of a grid, each with the arguments that train it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{Cli, Command, Refusal};
use crate::config::grid::{Grid, Point};

#[derive(Debug, Args)]
pub(super) struct Sweep {
    /// What differs, as in optim.learning_rate=0.05,0.1 run.seed=1,2 for four runs; commas in brackets or quotes do not
    /// split. With one value, or a group such as experiment=quickstart, it is the same in all runs.
    #[arg(value_name = "KEY=VALUE,VALUE", required = true)]
    settings: Vec<String>,
    /// Directory for a directory per run, sweep.csv and sweep.html. Complete runs there are not repeated.
    #[arg(long, value_name = "DIR", default_value = "sweep")]
    output_dir: PathBuf,
    /// Flags and settings of all runs, as for train itself.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

impl Sweep {
    pub(super) fn command(self) -> Result<Command, Refusal> {
        let grid = Grid::read(&self.settings)?;
        let point = |settings: Vec<(String, String)>| {
            let own = settings.iter().map(|(key, value)| format!("{key}={value}").into());
            let common = grid.common.iter().map(OsString::from);
            let arguments: Vec<OsString> = common.chain(self.arguments.iter().cloned()).chain(own).collect();
            let request = Cli::training(&arguments, "sweep KEY=VALUE,VALUE --")?;
            Ok(Point { name: grid.name(&settings), settings, arguments, request })
        };
        let points = grid.points().into_iter().map(point).collect::<Result<_, Refusal>>()?;
        Ok(Command::Sweep { directory: self.output_dir, points })
    }
}
