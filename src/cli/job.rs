//! The options of commands for runs of several processes, other than training.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use kiln_system::Result;

use super::refusal::whole;
use super::training::Training;
use crate::config::ParallelConfig;
use crate::launch::sbatch::Sbatch;
use crate::trainer::{members, rendezvous, secret, slurm};

#[derive(Debug, Args)]
pub struct Rendezvous {
    /// Address to listen on, as in 0.0.0.0:23456.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    bind: SocketAddr,
    /// All addresses of the run's --dist-url, if it names several.
    #[arg(long, value_name = "URL")]
    dist_url: Option<String>,
    /// The run's --lost-after, if its --dist-url names several addresses.
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| text.parse::<f64>().map_err(|_| "a number"))]
    lost_after: Option<f64>,
    #[command(flatten)]
    terms: Terms,
}

impl Rendezvous {
    pub(super) fn run(self) -> Result<u8> {
        let Self { bind, dist_url, lost_after, terms } = self;
        let mut parallel = terms.at(dist_url.unwrap_or_else(|| format!("tcp://{bind}")));
        parallel.lost_after = lost_after.unwrap_or(parallel.lost_after);
        rendezvous(bind, &parallel)
    }
}

#[derive(Debug, Args)]
pub struct Members {
    /// Rendezvous address of the run, as in tcp://node1:23456.
    #[arg(long, value_name = "URL")]
    dist_url: String,
    /// Ask the process with this rank to save its part and leave after the current step.
    #[arg(long, value_name = "RANK", value_parser = whole::<usize>(0..=u64::MAX))]
    drain: Option<usize>,
    #[command(flatten)]
    terms: Terms,
}

impl Members {
    pub(super) fn run(self) -> Result<u8> {
        members(&self.terms.at(self.dist_url), self.drain).map(|()| 0)
    }
}

#[derive(Debug, Args)]
pub struct Secret {
    /// File to write; it must not exist. Only you can read it.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Secret {
    pub(super) fn run(self) -> Result<u8> {
        secret(&self.file).map(|()| 0)
    }
}

#[derive(Debug, Args)]
pub struct Slurm {
    /// Machines.
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u16>(1..=10_000))]
    nodes: u16,
    /// GPUs per machine, with one process each; 0 means one process on the CPU.
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u16>(0..=1024))]
    gpus_per_node: u16,
    /// Time limit; the run is saved and requeued before it.
    #[arg(long, value_name = "TIME", default_value = "24:00:00")]
    time: String,
    /// Name of the job.
    #[arg(long, value_name = "NAME", default_value = "kiln")]
    job_name: String,
    /// Additional directive, as in partition=gpu, cpus-per-task=8 or array=0-3; may be repeated.
    #[arg(long = "sbatch", value_name = "NAME=VALUE")]
    directives: Vec<String>,
    /// Environment module to load; may be repeated.
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// Network interface between the machines.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Submit the script instead of printing it.
    #[arg(long)]
    submit: bool,
    #[command(flatten)]
    pub(super) training: Training,
}

impl Slurm {
    pub(super) fn run(self) -> Result<u8> {
        let Self { nodes, gpus_per_node, time, job_name, directives, modules, interface, submit, training } = self;
        let Training { arguments, request } = training;
        let sbatch = Sbatch { job_name, nodes, gpus_per_node, time, directives, modules, interface, arguments };
        slurm(&sbatch.script(), submit, &request).map(|()| 0)
    }
}

fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let address = text.parse().ok().filter(|address: &SocketAddr| address.port() > 0);
    address.ok_or_else(|| "an address and a port, as in 0.0.0.0:23456".into())
}

/// The options to connect with the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct Terms {
    /// Name of the job.
    #[arg(long, value_name = "NAME", default_value = "kiln")]
    job_id: String,
    /// File with the job's secret, as written by 'train secret'; without it the variable KILN_JOB_SECRET, or on this
    /// machine a secret of the user.
    #[arg(long, value_name = "FILE")]
    job_secret_file: Option<PathBuf>,
    /// Let processes meet without a secret.
    #[arg(long)]
    insecure: bool,
}

impl Terms {
    /// The same as a configuration.
    fn at(self, dist_url: String) -> ParallelConfig {
        let Self { job_id, job_secret_file, insecure } = self;
        let job_secret_file = job_secret_file.unwrap_or_default();
        ParallelConfig { job_id, job_secret_file, insecure, dist_url, ..Default::default() }
    }
}
