//! The settings of replicas, devices and processes: the `[parallel]` section.
//!
//! `config/default.toml` documents it for users, `rules.rs` checks it, and the backend checks the devices.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use kiln_engine::parallel::{
    BackendKind, BnStatistics, CHECK_EVERY, CudaGraph, DistBackend, ReducePrecision, StrategyKind, World,
};
use kiln_membership::Elastic;
use kiln_system::{Error, with_defaults};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

with_defaults! {
    /// The `[parallel]` section.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ParallelConfig {
        pub world_size: usize = 1,
        pub gpu_ids: Vec<usize> = vec![0],
        #[serde(with = "kiln_system::text")]
        pub replicas_per_device: ReplicasPerDevice = ReplicasPerDevice::Even,
        #[serde(deserialize_with = "count_or_auto")]
        pub stages: usize = 1,
        pub split_points: Vec<usize> = Vec::new(),
        pub rank: usize = 0,
        pub nnodes: usize = 0,
        pub batch_size: usize = 32,
        pub backend: BackendKind = BackendKind::Auto,
        pub strategy: StrategyKind = StrategyKind::Auto,
        pub sync_bn: bool = true,
        pub bn_statistics: BnStatistics = BnStatistics::First,
        pub reduce_precision: ReducePrecision = ReducePrecision::F32,
        pub shard_optimizer: bool = false,
        pub grad_checkpointing: bool = false,
        pub cuda_graph: CudaGraph = CudaGraph::Auto,
        pub cudnn: bool = false,
        pub check_every: usize = CHECK_EVERY,
        pub roll_back: bool = false,
        pub timeout: f64 = 30.0,
        #[serde(with = "kiln_system::text")]
        pub elastic: Elastic = Elastic::Off,
        pub elastic_timeout: f64 = 600.0,
        pub heartbeat: f64 = 1.0,
        pub lost_after: f64 = 10.0,
        pub dist_url: String = String::new(),
        pub dist_backend: DistBackend = DistBackend::Auto,
        pub link: f64 = 0.0,
        pub dist_interface: String = String::new(),
        pub job_id: String = "kiln".into(),
        pub job_secret_file: PathBuf = PathBuf::new(),
        pub insecure: bool = false,
    }
}

/// How many replicas each device hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicasPerDevice {
    /// Equally many, or one more.
    Even,
    /// By the time that one takes there.
    Auto,
    /// On the devices of all processes, in their order.
    Given(Vec<usize>),
}

impl FromStr for ReplicasPerDevice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let count = |count: &str| count.trim().parse().ok().filter(|count| *count > 0);
        match text {
            "even" => Ok(Self::Even),
            "auto" => Ok(Self::Auto),
            counts => counts
                .split(',')
                .map(count)
                .collect::<Option<_>>()
                .map(Self::Given)
                .ok_or("even, auto, or a number from 1 for each device, as in 3,1"),
        }
    }
}

impl fmt::Display for ReplicasPerDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Even => f.write_str("even"),
            Self::Auto => f.write_str("auto"),
            Self::Given(counts) => f.write_str(&counts.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

/// A number, or `auto` for 0.
fn count_or_auto<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Count {
        Number(usize),
        Word(String),
    }
    match Count::deserialize(deserializer)? {
        Count::Number(count) => Ok(count),
        Count::Word(word) if word == "auto" => Ok(0),
        Count::Word(_) => Err(D::Error::custom("a whole number, or auto")),
    }
}

impl ParallelConfig {
    /// The strategy that runs: never `Auto`.
    pub fn strategy(&self) -> StrategyKind {
        match self.strategy {
            StrategyKind::Auto if self.world_size == 1 => StrategyKind::Single,
            StrategyKind::Auto => StrategyKind::Ddp,
            chosen => chosen,
        }
    }

    /// How long a replica waits for the others in a collective.
    pub fn limit(&self) -> Duration {
        seconds(self.timeout)
    }

    /// Hosts and ports of [`ParallelConfig::dist_url`], if all have both.
    pub fn rendezvous(&self) -> Option<Vec<(&str, u16)>> {
        self.dist_url.strip_prefix("tcp://")?.trim_end_matches('/').split(',').map(host_and_port).collect()
    }

    /// Stages of all replicas: what devices host.
    pub fn workers(&self) -> usize {
        self.world_size.saturating_mul(self.stages.max(1)).max(1)
    }

    /// The world of this process, with `processes[i]` devices in each process.
    ///
    /// # Errors
    /// If a device has no replica.
    pub fn world(&self, processes: Vec<usize>) -> kiln_system::Result<World> {
        let (all, size) = (processes.iter().sum(), self.world_size);
        let stages = self.stages_on(all);
        if all > size * stages {
            let several =
                if processes.len() == 1 { String::new() } else { format!(" on {} processes", processes.len()) };
            return Err(Error::usage(format!(
                "every device must have a replica, got '{all}' devices{several} for {}; use --world-size {} or fewer \
                 --gpu-ids",
                self.capacity(),
                all.div_ceil(stages)
            )));
        }
        let (rank, devices) = (self.rank, self.gpu_ids.clone());
        match &self.replicas_per_device {
            ReplicasPerDevice::Given(counts) if counts.len() == all => {
                Ok(World::counted(stages, rank, &processes, devices, counts))
            }
            ReplicasPerDevice::Given(counts) => Err(Error::usage(format!(
                "replicas per device needs a number for each of the {all} devices of all processes, got {}; use \
                 --replicas-per-device auto, or a list of {all} numbers that add up to {size}",
                counts.len(),
            ))),
            _ => Ok(World::staged([size, stages], rank, processes, devices)),
        }
    }

    /// The stages of each replica on `devices` devices in all; of those that the planner is to choose, the most that
    /// get a device each.
    pub fn stages_on(&self, devices: usize) -> usize {
        if self.stages > 0 { self.stages } else { devices.div_ceil(self.world_size.max(1)).max(1) }
    }

    pub fn plans_stages(&self) -> bool {
        self.stages == 0
    }

    /// What devices and processes have to host, for people.
    pub fn capacity(&self) -> String {
        match (self.world_size, self.stages) {
            (world, 0 | 1) => format!("a world size of '{world}'"),
            (world, stages) => format!("a world size of '{world}' in '{stages}' stages"),
        }
    }

    /// The devices of all processes that are named, or else one for each worker.
    fn slots(&self) -> usize {
        if let ReplicasPerDevice::Given(counts) = &self.replicas_per_device { counts.len() } else { self.workers() }
    }

    /// The number of processes of a run of fixed membership: `nnodes`, or with an address enough for all devices. 1 for
    /// an elastic run, which begins with this process.
    pub fn processes(&self) -> usize {
        match self.nnodes {
            _ if self.elastic.is_on() => 1,
            0 if self.rank == 0 && self.dist_url.is_empty() => 1,
            0 => self.slots().div_ceil(self.gpu_ids.len().max(1)).max(1),
            count => count,
        }
    }
}

/// A time limit; a number that no duration can hold is for ever.
pub fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 100)
}

fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then_some((host, port))
}
