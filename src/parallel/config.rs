//! The settings of replicas, devices and processes: the `[parallel]` section.
//!
//! `config/default.toml` documents it for users, the config room checks it, and the backend checks the devices.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The tensor library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// The best one this binary was built with.
    Auto,
    /// Pure Rust on the CPU.
    Flex,
    /// LibTorch, on the CPU and on CUDA.
    Tch,
    /// NVIDIA GPUs through CubeCL.
    Cuda,
    /// Vulkan, Metal and DirectX 12.
    Wgpu,
}

/// How replicas keep their weights equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StrategyKind {
    /// `Single` for one replica, otherwise `Ddp`.
    Auto,
    /// One replica, no communication.
    Single,
    /// Every replica averages the gradients and updates its own weights.
    #[serde(alias = "dp")]
    Ddp,
}

/// The type in which gradients are sent between replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReducePrecision {
    /// Without rounding.
    F32,
    /// Rounded to bf16; sums are f32.
    Bf16,
}

/// The collective engine between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DistBackend {
    /// Between processes [`DistBackend::Nccl`] if all devices are CUDA's and have it, else [`DistBackend::Gloo`]. In one
    /// process [`DistBackend::Local`], or [`DistBackend::Nccl`] for devices of CubeCL's CUDA, which do not share memory.
    Auto,
    /// Memory: one process.
    Local,
    /// TCP, through the host's memory.
    Gloo,
    /// GPU to GPU; Gloo for the rest, if there are several processes.
    Nccl,
}

/// The number of processes of a run: fixed, or within limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Elastic {
    /// Membership is fixed: the loss of a process ends the run.
    Off,
    /// Processes may join and leave.
    Between {
        /// The run waits while there are fewer, at least 1.
        min: usize,
        /// More stay in reserve; `None` for as many as there are replicas.
        max: Option<usize>,
    },
}

impl Elastic {
    /// Whether processes may join and leave.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }
}

impl FromStr for Elastic {
    type Err = String;

    /// Reads `1:4`, `1:` (at most one process per replica), `4` (exactly four) or `off`.
    fn from_str(text: &str) -> Result<Self, String> {
        const RULE: &str = "the fewest and the most processes, such as 1:4, or off";
        if text == "off" {
            return Ok(Self::Off);
        }
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        let count = |text: &str| text.parse().ok().filter(|count| *count > 0);
        let max = if max.is_empty() { None } else { Some(count(max).ok_or(RULE)?) };
        match count(min) {
            Some(min) if max.is_none_or(|max| min <= max) => Ok(Self::Between { min, max }),
            _ => Err(RULE.into()),
        }
    }
}

impl TryFrom<String> for Elastic {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Elastic> for String {
    fn from(elastic: Elastic) -> Self {
        match elastic {
            Elastic::Off => "off".into(),
            Elastic::Between { min, max: None } => format!("{min}:"),
            Elastic::Between { min, max: Some(max) } => format!("{min}:{max}"),
        }
    }
}

/// Steps between two comparisons of the replicas' weights: seldom enough to cost less than 0.5 % of small steps.
pub(super) const CHECK_EVERY: usize = 200;

/// The `[parallel]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// Replicas of the experiment, at least 1.
    pub world_size: usize,
    /// Devices that host the replicas, each once, at most one per replica and stage.
    pub gpu_ids: Vec<usize>,
    /// Parts into which the model of a replica is cut; each is computed on its own, a device or a slot. 0 leaves their
    /// number and the split points to the planner.
    #[serde(deserialize_with = "count_or_auto")]
    pub stages: usize,
    /// The first unit of each stage but the first; empty: where the most expensive stage has the least work.
    pub split_points: Vec<usize>,
    /// Rank of this process among all processes.
    pub rank: usize,
    /// Processes of the run; 0 means as many as the world needs devices for. See [`ParallelConfig::processes`].
    pub nnodes: usize,
    /// Images per replica and micro-batch, at least 1.
    pub batch_size: usize,
    /// The tensor library.
    pub backend: BackendKind,
    /// How replicas keep their weights equal; see [`ParallelConfig::strategy`].
    pub strategy: StrategyKind,
    /// Whether batch-norm takes its statistics over all replicas.
    pub sync_bn: bool,
    /// The type in which gradients are sent between replicas.
    pub reduce_precision: ReducePrecision,
    /// Whether each replica updates a part of the weights and remembers momentum for it alone (ZeRO, stage 1).
    pub shard_optimizer: bool,
    /// Steps between two comparisons of the replicas' weights; 0 for none, not even before a checkpoint.
    pub check_every: usize,
    /// Whether an elastic run goes back to its last checkpoint where a minority of the replicas differs, instead of ending.
    pub roll_back: bool,
    /// Seconds a replica waits for the others in a collective, above 0; ten times as long in the first step.
    pub timeout: f64,
    /// Whether processes and devices may join and leave, and how many processes there may be.
    pub elastic: Elastic,
    /// Seconds that an elastic run waits while it has too few processes or no rendezvous, above 0.
    pub elastic_timeout: f64,
    /// Seconds between two heartbeats of a process of an elastic run, above 0.
    pub heartbeat: f64,
    /// Seconds without a heartbeat after which it is lost, at least three heartbeats.
    pub lost_after: f64,
    /// The address of the rendezvous, `tcp://host:port` of rank 0; empty for one process. An elastic run may have three or
    /// five, `tcp://a:port,b:port,c:port`, and goes on while more than half of them are held.
    pub dist_url: String,
    /// The collective engine between devices and processes.
    pub dist_backend: DistBackend,
    /// The bandwidth between processes that the planner reckons with, in Mbit/s; 0 means that of memory.
    pub link: f64,
    /// Network interface of collectives; empty means that of the route to rank 0.
    pub dist_interface: String,
    /// Distinguishes jobs at the same address.
    pub job_id: String,
    /// File with the secret of the job; empty means the variable `KILN_JOB_SECRET`, or on one machine the user's secret.
    pub job_secret_file: PathBuf,
    /// Whether processes without a given secret run without one.
    pub insecure: bool,
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

impl Default for ParallelConfig {
    fn default() -> Self {
        Self {
            world_size: 1,
            gpu_ids: vec![0],
            stages: 1,
            split_points: Vec::new(),
            rank: 0,
            nnodes: 0,
            batch_size: 32,
            backend: BackendKind::Auto,
            strategy: StrategyKind::Auto,
            sync_bn: true,
            reduce_precision: ReducePrecision::F32,
            shard_optimizer: false,
            check_every: CHECK_EVERY,
            roll_back: false,
            timeout: 30.0,
            elastic: Elastic::Off,
            elastic_timeout: 600.0,
            heartbeat: 1.0,
            lost_after: 10.0,
            dist_url: String::new(),
            dist_backend: DistBackend::Auto,
            link: 0.0,
            dist_interface: String::new(),
            job_id: "kiln".into(),
            job_secret_file: PathBuf::new(),
            insecure: false,
        }
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
        Duration::try_from_secs_f64(self.timeout).unwrap_or(Duration::MAX / 100)
    }

    /// Hosts and ports of [`ParallelConfig::dist_url`], if all have both.
    pub fn rendezvous(&self) -> Option<Vec<(&str, u16)>> {
        self.dist_url.strip_prefix("tcp://")?.trim_end_matches('/').split(',').map(host_and_port).collect()
    }

    /// Stages of all replicas: what devices host.
    pub fn workers(&self) -> usize {
        self.world_size.saturating_mul(self.stages.max(1)).max(1)
    }

    /// The stages of each replica on `devices` devices in all; of those that the planner is to choose, the most that get a
    /// device each.
    pub fn stages_on(&self, devices: usize) -> usize {
        if self.stages > 0 { self.stages } else { devices.div_ceil(self.world_size.max(1)).max(1) }
    }

    /// Whether the planner chooses the stages.
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

    /// The number of processes of a run of fixed membership: `nnodes`, or with an address enough for one worker per
    /// device. 1 for an elastic run, which begins with this process.
    pub fn processes(&self) -> usize {
        match self.nnodes {
            _ if self.elastic.is_on() => 1,
            0 if self.rank == 0 && self.dist_url.is_empty() => 1,
            0 => self.workers().div_ceil(self.gpu_ids.len().max(1)).max(1),
            count => count,
        }
    }
}

fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then_some((host, port))
}
