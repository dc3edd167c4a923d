//! This process as a member of an elastic run: for each generation it connects with the other members over Gloo.
//!
//! Any process on the machine of `--dist-url` holds the rendezvous if no other does; when its holder is lost, another
//! one takes over. With several addresses, the holders elect one of them. `train rendezvous` holds it for runs that
//! should not depend on a trainer. After an error of the engine the generation ends, and the next one consists of the
//! members that are still there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_engine::parallel::engine::{Engine, Symptom};
use kiln_engine::parallel::nccl::Transport;
use kiln_engine::parallel::{PATIENCE, Processes, World};
use kiln_membership::rendezvous::Client;
use kiln_membership::rendezvous::membership::{MembershipView, Phase, Placement};
use kiln_membership::{MemberStatus, Next, StateVersion};
use kiln_system::{Error, Result};
use parking_lot::Mutex;

use super::address;
use super::connector::Connector;
use super::elastic::{ActiveGeneration, ElasticMembership};
use super::holder::{HeldService, hold, terms};
use super::member::Member;
use super::stage_engines::close_when_over;
use crate::config::{ParallelConfig, seconds};

/// The time limit of the last checkpoint. It may be long, since heartbeats detect the loss of the writing process.
const LAST_CHECKPOINT: Duration = Duration::from_secs(3600);
/// How long a leaving holder of the rendezvous waits at most until the others have begun the next generation.
const HANDOVER: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

pub(super) struct ElasticMember {
    member: Arc<Client>,
    connector: Arc<Connector>,
    ordered: bool,
    transport: Transport,
    timeout: Duration,
    stages: usize,
    /// The number of the current generation, and its world.
    world: Mutex<Option<(u64, World)>>,
    /// The service, if this process holds it. Dropped after the member has left.
    service: HeldService,
}

impl ElasticMember {
    pub(super) fn join(
        parallel: &ParallelConfig,
        configuration: BTreeMap<String, String>,
        nanoseconds: u64,
        ordered: bool,
        transport: Transport,
    ) -> Result<Self> {
        address::check_interface(parallel)?;
        let places = address::hosts_and_ports(parallel)?;
        let terms = terms(parallel, address::secret(parallel, &places)?);
        let own = address::process_info(parallel, None, configuration, nanoseconds);
        let service = HeldService::default();
        let limit = seconds(parallel.elastic_timeout);
        let hold = hold(&places, &terms, service.clone());
        let (address, seconds) = (address::texts(&places).join(","), limit.as_secs());
        let place = address.clone();
        let met = address::warn_if_slow(move || {
            let holders =
                if place.contains(',') { "processes on most of its machines" } else { "a process on its machine" };
            format!("waiting for the rendezvous '{place}', at most {seconds} s; {holders} must hold it")
        });
        let interface = address::interface(parallel, &places)?;
        let member = Arc::new(Client::join(&address, &terms, own, limit, hold)?);
        drop(met);
        Ok(Self {
            connector: Connector::start(member.clone(), interface, parallel.limit()),
            member,
            ordered,
            transport,
            timeout: parallel.limit(),
            stages: parallel.stages,
            world: Mutex::new(None),
            service,
        })
    }

    /// Begins the generation of `view`: the world of this process, and connections to the others.
    fn enter(&self, view: &MembershipView, devices: &[usize]) -> std::result::Result<ActiveGeneration, Symptom> {
        let placement = view.placement();
        let rank = placement.rank(self.member.id()).ok_or_else(|| Symptom("this process has no replica".into()))?;
        let blocks = placement.blocks.iter().map(|block| block.replicas.clone()).collect();
        let used = placement.blocks[rank].devices.clamp(1, devices.len());
        let world = World::placed(self.stages, rank, blocks, devices[..used].to_vec());
        let host = view.parts().nth(rank).map(|member| member.host.as_str());
        let local_processes = view.parts().filter(|member| Some(member.host.as_str()) == host).count();
        let processes = if world.processes() > 1 { Some(self.connect(&world, &placement)?) } else { None };
        let (number, why) = (view.generation, view.why.clone());
        *self.world.lock() = Some((number, world.clone()));
        let generation = Arc::new(Member(self.member.clone()));
        Ok(ActiveGeneration { number, world, local_processes, processes, generation, why })
    }

    fn connect(&self, world: &World, placement: &Placement) -> std::result::Result<Processes, Symptom> {
        self.member.doing("connecting the processes");
        let gloo: Arc<dyn Engine> = Arc::new(self.connector.connect(placement)?);
        let stages = self.connector.stages(placement, world)?;
        let is_over = close_when_over(&self.member, gloo.clone(), &stages);
        let store = self.connector.store(placement, "", || true);
        let links = self.transport.connect(world, &store, &is_over, self.timeout * PATIENCE)?;
        let processes = Processes::new(gloo, Arc::new(Member(self.member.clone())), world.blocks.clone(), self.ordered);
        Ok(processes.with_stages(stages).with_links(links))
    }

    /// Keeps the service, if it is held here, until the others have begun without this process.
    fn hand_over(&self, step: u64) {
        let service = self.service.lock();
        let Some(service) = service.as_ref() else { return };
        let deadline = Instant::now() + HANDOVER;
        let begun = |view: MembershipView| {
            view.phase == Phase::Running && view.parts().all(|member| member.progress.step > step)
        };
        let others = |view: &MembershipView| view.members.iter().any(|member| !member.draining);
        while service.view().is_some_and(|it| others(&it) && !begun(it)) && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }

    /// Tells all processes of the generation that the run is complete, before any of them leaves.
    fn announce_end(
        &self,
        generation: u64,
        world: &World,
    ) -> std::result::Result<(), kiln_membership::rendezvous::Verdict> {
        let complete = format!("{generation}/complete");
        let over = |rank: usize| format!("{generation}/over/{rank}");
        if world.rank > 0 {
            self.member.get(&[complete], LAST_CHECKPOINT)?;
            return self.member.set(&over(world.rank), &[]);
        }
        self.member.set(&complete, &[])?;
        let others: Vec<String> = (1..world.processes()).map(over).collect();
        // A process that misses this learns from the rendezvous that the job is complete.
        drop(self.member.get(&others, self.timeout));
        Ok(())
    }
}

impl ElasticMembership for ElasticMember {
    fn next(
        &self,
        holds: StateVersion,
        devices: &[usize],
        mut failure: Option<String>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Next<ActiveGeneration>> {
        if devices.is_empty() {
            return Err(Error::Training(failure.unwrap_or_else(|| "no device is left".into())));
        }
        loop {
            let member = self.member.clone();
            let met = address::warn_if_slow(move || format!("waiting to take part: {}", member.awaited()));
            let next = self.member.next(holds, devices.len(), failure.take(), keep)?;
            drop(met);
            let view = match next {
                Next::Begin(view) => view,
                Next::Complete => return Ok(Next::Complete),
                Next::Left => {
                    self.hand_over(holds.step);
                    return Ok(Next::Left);
                }
            };
            match self.enter(&view, devices) {
                Ok(active) => return Ok(Next::Begin(active)),
                Err(symptom) => drop(self.member.trouble(&symptom.0)),
            }
        }
    }

    fn complete(&self) -> Result<bool> {
        self.member.doing("end of the run");
        let world = self.world.lock().clone();
        Ok(world.is_none_or(|(generation, world)| self.announce_end(generation, &world).is_ok()))
    }

    fn confirm(&self) -> Result<()> {
        self.member.confirm().map_err(|verdict| Error::PeerLost(verdict.0))
    }

    fn members(&self) -> Vec<MemberStatus> {
        self.member.members()
    }

    fn progress(&self, step: usize, images_per_second: f64, waited: [f64; 2]) {
        self.member.progress(step as u64, images_per_second, waited);
    }

    fn drain(&self) -> bool {
        self.member.drain();
        true
    }

    fn leave(&self, failure: Option<&str>) {
        self.member.leave(failure);
    }
}
