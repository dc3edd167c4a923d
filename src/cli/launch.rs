//! The options of `train launch`.

use clap::Args;
use kiln_membership::Machines;
use kiln_system::Result;

use super::refusal::whole;
use super::training::Training;
use crate::trainer::launch;

#[derive(Debug, Args)]
pub struct Launch {
    /// Processes per machine, each with its share of the devices.
    #[arg(long, visible_alias = "nproc-per-node", value_name = "N", value_parser = whole::<u16>(1..=1024))]
    pub nproc: u16,
    /// Number of machines; run this command on each of them.
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u16>(1..=1024))]
    nnodes: u16,
    /// Number of this machine, from 0.
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u16>(0..=1023))]
    node_rank: u16,
    /// Address of machine 0, for several machines.
    #[arg(long, value_name = "HOST")]
    master_addr: Option<String>,
    /// Port at that address.
    #[arg(long, value_name = "PORT", default_value = "29500", value_parser = whole::<u16>(1..=65535))]
    master_port: u16,
    #[command(flatten)]
    pub training: Training,
}

impl Launch {
    pub(super) fn run(self) -> Result<u8> {
        let (count, number) = (self.nnodes.into(), self.node_rank.into());
        let machines = Machines::new(count, number, self.master_addr, self.master_port)?;
        launch(self.nproc.into(), &machines, &self.training.arguments, self.training.request)
    }
}
