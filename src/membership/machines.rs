//! The machines of a job, numbered as in torchrun. `train launch` starts the processes on each of them.

use kiln_system::{Error, Result};

use super::environment::LOOPBACK;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machines {
    count: usize,
    number: usize,
    /// Host and port of rank 0, for several machines.
    meeting: Option<(String, u16)>,
}

impl Machines {
    /// Machine `number` of `count`, where rank 0 listens at `host` and `port`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are fewer machines, or if several have no host to meet at.
    pub fn new(count: usize, number: usize, host: Option<String>, port: u16) -> Result<Self> {
        if number >= count {
            return Err(Error::usage(format!(
                "node rank must be below the number of machines '{count}', got '{number}'; use --nnodes {} or a lower \
                 --node-rank",
                number + 1
            )));
        }
        match (count, host) {
            (1, _) => Ok(Self { count, number, meeting: None }),
            (_, Some(host)) => Ok(Self { count, number, meeting: Some((host, port)) }),
            (_, None) => Err(Error::usage(format!(
                "'{count}' machines need a rendezvous address; use --master-addr HOST with the address of the machine \
                 with --node-rank 0"
            ))),
        }
    }

    /// Where the processes meet, unless this machine has them all.
    pub fn meeting(&self) -> Option<(&str, u16)> {
        self.meeting.as_ref().map(|(host, port)| (host.as_str(), *port))
    }

    /// The rank of the first of the `processes` on this machine.
    pub fn first_rank(&self, processes: usize) -> usize {
        self.number * processes
    }

    /// The variables of the process with number `local` of the `processes` on this machine.
    pub fn variables(&self, local: usize, processes: usize) -> Vec<(String, String)> {
        let numbers = [
            ("RANK", self.first_rank(processes) + local),
            ("LOCAL_RANK", local),
            ("WORLD_SIZE", self.count * processes),
            ("LOCAL_WORLD_SIZE", processes),
        ];
        let mut variables: Vec<_> = numbers.map(|(name, number)| (name.to_string(), number.to_string())).to_vec();
        if let Some((host, port)) = self.meeting() {
            variables.extend([("MASTER_ADDR".into(), host.into()), ("MASTER_PORT".into(), port.to_string())]);
        }
        variables
    }

    /// As [`Machines::variables`] of the first process, with a placeholder where the launcher will choose a port.
    pub fn variables_of_first(&self, processes: usize) -> Vec<(String, String)> {
        let mut variables = self.variables(0, processes);
        if self.meeting.is_none() {
            variables.extend([("MASTER_ADDR".into(), LOOPBACK.into()), ("MASTER_PORT".into(), "1".into())]);
        }
        variables
    }
}
