//! The options of `train launch`.

use std::ffi::OsString;

use clap::Args;

use super::refusal::whole;
use super::{Cli, Command, Refusal};
use crate::launch::Machines;

#[derive(Debug, Args)]
pub(super) struct Launch {
    /// Processes, each with its part of the devices.
    #[arg(long, visible_alias = "nproc-per-node", value_name = "N", value_parser = whole::<u16>(1..=1024))]
    nproc: u16,
    /// Machines, on each of which this command starts N processes.
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u16>(1..=1024))]
    nnodes: u16,
    /// Number of this machine, from 0.
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u16>(0..=1023))]
    node_rank: u16,
    /// Address of machine 0, for several machines.
    #[arg(long, value_name = "HOST")]
    master_addr: Option<String>,
    /// Port there.
    #[arg(long, value_name = "PORT", default_value = "29500", value_parser = whole::<u16>(1..=65535))]
    master_port: u16,
    /// Flags and settings of the training, as for train itself.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

impl Launch {
    pub(super) fn command(self) -> Result<Command, Refusal> {
        let request = Cli::training(&self.arguments, "launch --nproc N --")?;
        let (count, number) = (self.nnodes.into(), self.node_rank.into());
        let machines = Machines::new(count, number, self.master_addr, self.master_port)?;
        Ok(Command::Launch { processes: self.nproc.into(), machines, arguments: self.arguments, request })
    }
}
