//! Reads rank, number of processes and rendezvous address from the environment variables of the launcher.
//!
//! torchrun, Open MPI, MPICH, SLURM and TensorFlow each use variables of their own. The functions here are pure, so
//! that every combination can be tested. Each value carries the name of its variable; the resolver compares them with
//! the flags.
//!
//! The order matters. `mpirun` inside a SLURM job inherits SLURM's variables, which describe the batch script or the
//! daemon that `mpirun` started on each node, so MPI is checked first. A SLURM batch script itself has `SLURM_PROCID=0`
//! and `SLURM_NTASKS`, but is not a task: only a step (`srun`) has `SLURM_STEP_ID`.

use std::fmt;

use kiln_system::{Error, Result};

use super::{slurm, tf_config};

/// Derived ports are below 32768, where Linux begins with the ports of outgoing connections.
const FIRST_PORT: u64 = 20_000;
const PORTS: u64 = 12_000;
pub(super) const LOOPBACK: &str = "127.0.0.1";

/// What a launcher says about this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub launcher: Launcher,
    pub rank: Sourced<usize>,
    pub processes: Sourced<usize>,
    /// Its number among the processes of its node.
    pub local_rank: Option<Sourced<usize>>,
    /// The number of processes on its node, if known.
    pub local_processes: Option<usize>,
    /// The address of rank 0, `tcp://host:port`, if known.
    pub address: Option<Sourced<String>>,
    /// The same for all processes of a launch; two launches rarely share it.
    pub job_id: Option<Sourced<String>>,
}

/// A value and the environment variable it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    pub value: T,
    /// The variable, such as `SLURM_PROCID`.
    pub source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, `train launch`, or any program that sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    OpenMpi,
    /// The Hydra launcher of MPICH, Intel MPI and MVAPICH, and others that speak PMI.
    Mpich,
    Slurm,
    /// Any program that sets TensorFlow's `TF_CONFIG`.
    TensorFlow,
}

impl fmt::Display for Launcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Slurm => "SLURM",
            Self::TensorFlow => "TensorFlow",
        })
    }
}

/// Reads the variables of the launcher; `None` if no launcher started this process. Empty variables count as absent.
///
/// # Errors
/// [`Error::Usage`] with all problems: an incomplete set of variables, invalid numbers, a rank out of range.
pub fn identify(environment: &[(String, String)]) -> Result<Option<Identity>> {
    let mut reader = Reader { environment, complaints: Vec::new() };
    let identity = reader.launcher().and_then(|launcher| reader.identity(launcher));
    reader.check_stray_world_size(identity.as_ref());
    if reader.complaints.is_empty() { Ok(identity) } else { Err(Error::Usage(reader.complaints)) }
}

struct Reader<'a> {
    environment: &'a [(String, String)],
    complaints: Vec<String>,
}

impl Reader<'_> {
    fn launcher(&self) -> Option<Launcher> {
        let step = self.has("SLURM_STEP_ID") && self.has("SLURM_PROCID");
        // `srun --mpi=pmi2` sets PMI's variables too, but says more in its own. Only Hydra sets the local rank.
        let hydra = self.has("PMI_RANK") && (!step || self.has("MPI_LOCALRANKID"));
        [
            (self.has("RANK"), Launcher::Torchrun),
            (self.has("OMPI_COMM_WORLD_RANK"), Launcher::OpenMpi),
            (hydra, Launcher::Mpich),
            (step, Launcher::Slurm),
            (self.has(tf_config::NAME), Launcher::TensorFlow),
        ]
        .into_iter()
        .find_map(|(seen, launcher)| seen.then_some(launcher))
    }

    fn identity(&mut self, launcher: Launcher) -> Option<Identity> {
        // Of several names the first that is set counts.
        let (rank, processes, local_rank, local_size): (_, &[&str], _, _) = match launcher {
            Launcher::Torchrun => ("RANK", &["WORLD_SIZE"], "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
            Launcher::OpenMpi => (
                "OMPI_COMM_WORLD_RANK",
                &["OMPI_COMM_WORLD_SIZE"],
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ),
            Launcher::Mpich => ("PMI_RANK", &["PMI_SIZE"], "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
            // A step may have fewer tasks than its job.
            Launcher::Slurm => ("SLURM_PROCID", &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"], "SLURM_LOCALID", ""),
            Launcher::TensorFlow => return self.tf_config(),
        };
        let place = self.place(rank, processes);
        let local_rank = self.number(local_rank);
        let local_processes = match launcher {
            Launcher::Slurm => self.slurm_tasks_here(),
            _ => self.number(local_size).map(|said| said.value),
        };
        let (job_id, job_port) = self.job(launcher).unzip();
        let (rank, processes) = place?;
        let host = match launcher {
            Launcher::OpenMpi | Launcher::Mpich => self.only_host(local_size, &processes),
            Launcher::Slurm => self.slurm_host(),
            Launcher::Torchrun | Launcher::TensorFlow => None,
        };
        let address = self.address(host, job_port);
        Some(Identity { launcher, rank, processes, local_rank, local_processes, address, job_id })
    }

    fn tf_config(&mut self) -> Option<Identity> {
        let read = tf_config::read(&self.text(tf_config::NAME)?.value);
        let (rank, processes, address) = read.map_err(|why| self.complain(why)).ok()?;
        let said = |value| Sourced { value, source: tf_config::NAME.into() };
        Some(Identity {
            launcher: Launcher::TensorFlow,
            rank: said(rank),
            processes: said(processes),
            local_rank: None,
            local_processes: None,
            address: Some(Sourced { value: address, source: tf_config::NAME.into() }),
            job_id: None,
        })
    }

    /// Rank and number of processes; both must be set.
    fn place(&mut self, rank: &str, processes: &[&str]) -> Option<(Sourced<usize>, Sourced<usize>)> {
        let size = processes.iter().find(|name| self.has(name));
        if size.is_none() {
            let said = self.text(rank).map(|rank| rank.value).unwrap_or_default();
            let missing = match processes {
                [one] => format!("{one} is not set"),
                several => format!("neither {} is set", several.join(" nor ")),
            };
            self.complain(format!("{rank} is '{said}', but {missing}: set both, or unset {rank}"));
        }
        let rank = self.number(rank);
        let (rank, size) = (rank?, self.number(size?)?);
        if rank.value < size.value {
            return Some((rank, size));
        }
        let (Sourced { value: rank, source: name }, Sourced { value: size, source }) = (rank, size);
        self.complain(format!("{name} is '{rank}', but must be below {source} '{size}'; ranks count from 0"));
        None
    }

    /// The id of the launch, and the port derived from it.
    fn job(&mut self, launcher: Launcher) -> Option<(Sourced<String>, u64)> {
        let id = match launcher {
            // torchrun sets "none" without --rdzv-id.
            Launcher::Torchrun => self.text("TORCHELASTIC_RUN_ID").filter(|id| id.value != "none"),
            Launcher::OpenMpi => self.text("PMIX_NAMESPACE").or_else(|| self.mpirun_number()),
            Launcher::Mpich | Launcher::TensorFlow => None,
            Launcher::Slurm => return self.slurm_job(),
        }?;
        let port = FIRST_PORT + fnv1a(&id.value) % PORTS;
        Some((id, port))
    }

    /// `1483145216` of `OMPI_MCA_orte_hnp_uri=1483145216.0;tcp://10.77.0.1:58071`. The address is of mpirun, not of
    /// rank 0.
    fn mpirun_number(&self) -> Option<Sourced<String>> {
        let uri = self.text("OMPI_MCA_orte_hnp_uri")?;
        let (number, _) = uri.value.split_once('.')?;
        Some(Sourced { value: number.into(), source: uri.source })
    }

    fn slurm_job(&mut self) -> Option<(Sourced<String>, u64)> {
        let job = self.number("SLURM_JOB_ID");
        let step = self.number("SLURM_STEP_ID")?.value as u64;
        let Sourced { value: job, source } = job?;
        // The factor keeps the ports of a job's steps apart from the ports of the next jobs; a prime reaches every
        // port.
        let port = FIRST_PORT + (job as u64).wrapping_add(step.wrapping_mul(7_919)) % PORTS;
        Some((Sourced { value: format!("{job}.{step}"), source }, port))
    }

    /// The loopback address if all processes run on this host. Otherwise MPI does not say where rank 0 is.
    fn only_host(&mut self, local_processes: &str, processes: &Sourced<usize>) -> Option<Sourced<String>> {
        let here = self.number(local_processes)?;
        (here.value == processes.value).then(|| Sourced { value: LOOPBACK.into(), source: here.source })
    }

    /// The number of tasks on this node, from a list such as `2,1` or `2(x3),1`.
    fn slurm_tasks_here(&mut self) -> Option<usize> {
        let tasks = self.text("SLURM_STEP_TASKS_PER_NODE").or_else(|| self.text("SLURM_TASKS_PER_NODE"))?.value;
        slurm::tasks(&tasks)?.get(self.number("SLURM_NODEID")?.value).copied()
    }

    fn slurm_host(&mut self) -> Option<Sourced<String>> {
        let Sourced { value: list, source } =
            self.text("SLURM_STEP_NODELIST").or_else(|| self.text("SLURM_JOB_NODELIST"))?;
        match slurm::hosts(&list) {
            Ok(hosts) if hosts.len() == 1 => Some(Sourced { value: LOOPBACK.into(), source }),
            Ok(hosts) => hosts.into_iter().next().map(|value| Sourced { value, source }),
            Err(reason) => {
                self.complain(format!("{source} is '{list}', which is not a list of hosts: {reason}"));
                None
            }
        }
    }

    /// `MASTER_ADDR` and `MASTER_PORT` win over what the launcher says, each on its own.
    fn address(&mut self, host: Option<Sourced<String>>, job_port: Option<u64>) -> Option<Sourced<String>> {
        let (given_host, given_port) = (self.text("MASTER_ADDR"), self.text("MASTER_PORT"));
        if given_port.is_some() && given_host.is_none() && host.is_none() {
            self.complain("MASTER_PORT is set, but MASTER_ADDR is not: set both, or pass --dist-url".into());
        }
        if given_host.is_some() && given_port.is_none() && job_port.is_none() {
            self.complain("MASTER_ADDR is set, but MASTER_PORT is not: set both, or pass --dist-url".into());
        }
        let port = if given_port.is_some() { self.port()? } else { job_port? };
        let Sourced { value: host, source } = given_host.or(host)?;
        let bare_ipv6 = host.contains(':') && !host.starts_with('[');
        let host = if bare_ipv6 { format!("[{host}]") } else { host };
        Some(Sourced { value: format!("tcp://{host}:{port}"), source })
    }

    fn port(&mut self) -> Option<u64> {
        let Sourced { value: port, source } = self.number("MASTER_PORT")?;
        if (1..=65_535).contains(&port) {
            return Some(port as u64);
        }
        self.complain(format!("{source} is '{port}', but a port is a number from 1 to 65535"));
        None
    }

    /// Job scripts often export `WORLD_SIZE` and leave the rank to SLURM or MPI. That is correct if both agree.
    fn check_stray_world_size(&mut self, identity: Option<&Identity>) {
        if self.has("RANK") {
            return;
        }
        let Some(size) = self.number("WORLD_SIZE") else { return };
        match identity.map(|identity| &identity.processes) {
            Some(processes) if processes.value == size.value => {}
            Some(Sourced { value, source }) => self.complain(format!(
                "WORLD_SIZE is '{}', but {source} is '{value}': unset WORLD_SIZE, or set RANK as well",
                size.value
            )),
            None if self.complaints.is_empty() => self.complain(format!(
                "WORLD_SIZE is '{}', but RANK is not set: set both, or unset WORLD_SIZE",
                size.value
            )),
            None => {}
        }
    }

    fn text(&self, name: &str) -> Option<Sourced<String>> {
        let (_, value) = self.environment.iter().find(|(key, value)| key == name && !value.trim().is_empty())?;
        Some(Sourced { value: value.trim().into(), source: name.into() })
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number(&mut self, name: &str) -> Option<Sourced<usize>> {
        let Sourced { value: text, source } = self.text(name)?;
        match text.parse() {
            Ok(value) => Some(Sourced { value, source }),
            Err(_) => {
                self.complain(format!("{name} is '{text}', but must be a whole number, 0 or more"));
                None
            }
        }
    }

    fn complain(&mut self, complaint: String) {
        self.complaints.push(complaint);
    }
}

/// The FNV-1a hash: unlike the hash of `std`, it is the same on every host and in every version.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
