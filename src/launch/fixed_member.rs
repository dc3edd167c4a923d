//! This process as a member of a job of fixed membership: it joins at the rendezvous and connects over Gloo.
//!
//! Rank 0 holds the rendezvous at `--dist-url`, or `train launch` does for the processes it starts. The rendezvous
//! decides which process caused a failure; an error of the engine is only a symptom.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use kiln_engine::parallel::engine::{Engine, Symptom};
use kiln_engine::parallel::gloo::{Gloo, Interface, LONGEST};
use kiln_engine::parallel::nccl::Transport;
use kiln_engine::parallel::{PATIENCE, Processes, World};
use kiln_membership::Machines;
use kiln_membership::processes::{GRACE, Launch};
use kiln_membership::rendezvous::{Client, Secret, Service, Terms, Verdict, secret_of_user};
use kiln_system::{Error, Result};
use parking_lot::Mutex;

use super::address::{self, HELD, SECRET};
use super::fixed::FixedMembership;
use super::holder;
use super::member::{EngineStore, Member};
use super::stage_engines::{close_when_over, stage_engines};
use crate::config::ParallelConfig;

/// How long one connection between two processes may take, once all are ready.
const CONNECT: Duration = Duration::from_secs(5);

pub(super) struct FixedMember {
    member: Arc<Client>,
    /// On rank 0, unless the launcher holds the rendezvous. Dropped after the member has left.
    _service: Mutex<Option<Service>>,
    world: World,
    interface: Interface,
    timeout: Duration,
}

impl FixedMember {
    /// Joins the job and waits for all other processes.
    pub(super) fn join(parallel: &ParallelConfig, configuration: BTreeMap<String, String>) -> Result<Self> {
        address::check_interface(parallel)?;
        let (host, port) = address::host_and_port(parallel)?;
        let terms = address::terms(parallel, parallel.processes(), address::secret(parallel, &[(host, port)])?);
        let held = std::env::var_os(HELD).is_some();
        let service = (parallel.rank == 0 && !held).then(|| hold(host, port, &terms)).transpose()?;
        let own = address::process_info(parallel, Some(parallel.rank), configuration, 0);
        let (address, limit) = (format!("{host}:{port}"), terms.timeout * PATIENCE);
        let (place, seconds) = (address.clone(), limit.as_secs());
        let met = address::warn_if_slow(move || {
            format!("waiting at the rendezvous '{place}' for all processes, at most {seconds} s")
        });
        let member = Arc::new(Client::join(&address, &terms, own, limit, Box::new(|| ()))?);
        drop(met);
        let devices: Vec<usize> = member.members().iter().map(|member| member.devices).collect();
        let (all, size) = (devices.iter().sum::<usize>(), parallel.world_size);
        if parallel.plans_stages() && all > size && !all.is_multiple_of(size) {
            return Err(Error::usage(format!(
                "with several processes, --stages auto needs the same number of devices for every replica, got '{all}' \
                 devices for a world size of '{size}'; use another --world-size, or give --stages {}",
                all.div_ceil(size)
            )));
        }
        let world = parallel.world(devices)?;
        Ok(Self {
            member,
            _service: Mutex::new(service),
            world,
            interface: address::interface(parallel, &[(host, port)])?,
            timeout: terms.timeout,
        })
    }

    fn own_key(&self, name: &str) -> String {
        format!("{name}/{}", self.world.rank)
    }

    fn all_keys(&self, name: &str) -> Vec<String> {
        (0..self.world.processes()).map(|rank| format!("{name}/{rank}")).collect()
    }
}

impl FixedMembership for FixedMember {
    fn world(&self) -> &World {
        &self.world
    }

    fn hosts(&self) -> Vec<String> {
        self.member.members().into_iter().map(|member| member.host).collect()
    }

    fn local_processes(&self) -> usize {
        let hosts = self.hosts();
        hosts.iter().filter(|host| **host == hosts[self.world.rank]).count()
    }

    fn agree(&self, what: &str, value: &dyn Fn() -> String) -> Result<()> {
        let values = self.gather(what, value())?;
        let other = values.iter().position(|other| *other != values[0]);
        other.map_or(Ok(()), |rank| {
            let [first, other] = [0, rank].map(|rank| &values[rank]);
            Err(Error::Data(format!(
                "processes must have the same {what}, got '{first}' on rank 0 and '{other}' on rank {rank}; start all \
                 of them from the same build, command and data"
            )))
        })
    }

    fn gather(&self, what: &str, value: String) -> Result<Vec<String>> {
        self.member.doing(&format!("comparison of {what}"));
        self.member.set(&self.own_key(what), value.as_bytes()).map_err(lost)?;
        let values = self.member.get(&self.all_keys(what), self.timeout * PATIENCE).map_err(lost)?;
        Ok(values.iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect())
    }

    fn connect(&self, world: &World, ordered: bool, transport: &Transport) -> Result<Option<Processes>> {
        self.member.doing("connecting the processes");
        // Connecting has short limits, to detect an unreachable host, so it begins when all processes are ready.
        self.member.set(&self.own_key("ready"), &[]).map_err(lost)?;
        self.member.get(&self.all_keys("ready"), self.timeout * PATIENCE).map_err(lost)?;
        let (client, limit) = (self.member.clone(), self.timeout.max(CONNECT * LONGEST));
        let store = |prefix: &str| {
            let (client, prefix) = (client.clone(), prefix.to_string());
            EngineStore { client, prefix, limit, is_wanted: Box::new(|| true) }
        };
        let (rank, size) = (world.rank, world.processes());
        let lost = |symptom: Symptom| Error::PeerLost(self.member.trouble(&symptom.0).0);
        let gloo = Gloo::connect(rank, size, &self.interface, Box::new(store("")), CONNECT).map_err(lost)?;
        let engine: Arc<dyn Engine> = Arc::new(gloo);
        let stages = stage_engines(world, &self.interface, store, CONNECT).map_err(lost)?;
        let is_over = close_when_over(&self.member, engine.clone(), &stages);
        let links = transport.connect(world, &store(""), &is_over, limit).map_err(lost)?;
        let processes = Processes::new(engine, Arc::new(Member(self.member.clone())), world.blocks.clone(), ordered);
        Ok(Some(processes.with_stages(stages).with_links(links)))
    }

    fn complete(&self) -> Result<()> {
        const KEY: &str = "complete";
        let limit = self.timeout * PATIENCE;
        self.member.doing("end of the run");
        if self.world.rank == 0 {
            self.member.set(KEY, &[]).map_err(lost)?;
        } else {
            self.member.get(&[KEY.to_string()], limit).map_err(lost)?;
        }
        self.member.set(&self.own_key("over"), &[]).map_err(lost)?;
        if self.world.rank == 0 {
            // The service must run until all processes know.
            self.member.get(&self.all_keys("over"), limit).map_err(lost)?;
        }
        Ok(())
    }

    fn leave(&self, failure: Option<&str>) {
        self.member.leave(failure);
    }
}

fn lost(verdict: Verdict) -> Error {
    Error::PeerLost(verdict.0)
}

fn hold(host: &str, port: u16, terms: &Terms) -> Result<Service> {
    let addresses: Vec<_> = address::addresses(host, port)?.into_iter().map(|address| (address, port).into()).collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(|reason| {
        Error::usage(format!(
            "rank 0 cannot hold the rendezvous at '{host}:{port}': {reason}; --dist-url must name an address of this \
             machine and a free port"
        ))
    })?;
    Service::start(listener, terms.clone())
}

/// `train launch`: holds the rendezvous for the processes it starts, with a new secret unless one is given; calls
/// `listening` with its address if the run is elastic. Processes of several machines meet at rank 0, or at the
/// addresses of a rendezvous with several.
pub(super) fn launch(
    processes: usize,
    machines: &Machines,
    arguments: &[OsString],
    parallel: &ParallelConfig,
    listening: &dyn Fn(&str),
) -> Result<u8> {
    address::check_interface(parallel)?;
    let elastic = parallel.elastic.is_on();
    let run = |variables: &[(String, String)]| {
        let program = std::env::current_exe().map_err(Error::io("find", "train"))?;
        let grace = (!elastic).then_some(GRACE);
        Launch { program: &program, arguments, variables, processes, machines, grace }.run()
    };
    if machines.meeting().is_some() || parallel.rendezvous().is_some_and(|places| places.len() > 1) {
        return run(&[]);
    }
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("listen on", "127.0.0.1"))?;
    // That of the user, so that `train members` can ask.
    let usual = || secret_of_user().ok().filter(|_| elastic).unwrap_or_else(Secret::random);
    let secret = address::given_secret(parallel)?.unwrap_or_else(usual);
    let shared = secret.clone();
    let terms = if elastic { holder::terms(parallel, shared) } else { address::terms(parallel, processes, shared) };
    let service = Service::start(listener, terms)?;
    if elastic {
        listening(&format!("tcp://{}", service.address()));
    }
    let variables = [
        ("MASTER_ADDR", "127.0.0.1".to_string()),
        ("MASTER_PORT", service.address().port().to_string()),
        (SECRET, secret.to_text().to_string()),
        (HELD, "train launch".into()),
    ];
    run(&variables.map(|(name, value)| (name.to_string(), value)))
}
