//! This process as a member of an elastic run: it follows the rendezvous from generation to generation and connects
//! with the others of each over Gloo.
//!
//! Any process on the machine of `--dist-url` holds the rendezvous if nobody else does, so that another one takes it
//! over when its holder is lost; `train rendezvous` holds it for runs that should not depend on a trainer. Unlike in a
//! job of fixed membership an engine's failure needs no verdict: the generation ends, and the next one is without
//! whoever does not come to it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::address;
use super::ahead::Connector;
use super::elastic::{Meeting, Members, Next, Standing};
use super::holder::{Holding, hold, seconds, terms};
use super::rendezvous::Client;
use super::rendezvous::bulletin::{self, Assembly, Bulletin, Phase};
use crate::error::{Error, Result};
use crate::parallel::collective::Broken;
use crate::parallel::engine::{Engine, Judge, Symptom};
use crate::parallel::{Generation, ParallelConfig, Processes, World};

/// How long the process that writes down the run may take for its last checkpoint; its loss is noticed before.
const UNHURRIED: Duration = Duration::from_secs(3600);
/// How long the holder of the rendezvous stays at most, after the others could do without it, for them to begin.
const HANDOVER: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(50);

/// One process of an elastic run.
pub(super) struct Crew {
    member: Arc<Client>,
    connector: Arc<Connector>,
    ordered: bool,
    timeout: Duration,
    /// The current generation, and its world.
    world: Mutex<Option<(u64, World)>>,
    /// The rendezvous, if it is held here. It ends after the member has left.
    service: Holding,
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crew({:?})", self.member)
    }
}

impl Crew {
    /// Comes to the run; `ordered` asks for sums in the order of the tree.
    pub(super) fn join(
        parallel: &ParallelConfig,
        configuration: BTreeMap<String, String>,
        ordered: bool,
    ) -> Result<Self> {
        let (host, port) = address::place(parallel)?;
        let terms = terms(parallel, address::secret(parallel, host, port)?);
        let me = address::newcomer(parallel, None, configuration);
        let service = Holding::default();
        let patience = seconds(parallel.elastic_timeout);
        let hold = hold(host, port, &terms, service.clone());
        let (address, seconds) = (format!("{host}:{port}"), patience.as_secs());
        let place = address.clone();
        let met = address::say_if_it_takes_long(move || {
            format!("waiting for the rendezvous '{place}', at most {seconds} s; a process on its machine must hold it")
        });
        let interface = address::interface(parallel, host, port)?;
        let member = Arc::new(Client::join(&address, &terms, me, patience, hold)?);
        drop(met);
        Ok(Self {
            connector: Connector::start(member.clone(), interface, parallel.limit()),
            member,
            ordered,
            timeout: parallel.limit(),
            world: Mutex::new(None),
            service,
        })
    }

    /// The place of this process in the generation of `bulletin`, and connections to the others.
    fn enter(&self, bulletin: &Bulletin, devices: &[usize]) -> std::result::Result<Meeting, Symptom> {
        let assembly = bulletin.assembly();
        let rank = assembly.rank(self.member.id()).ok_or_else(|| Symptom("this process has no part".into()))?;
        let blocks = assembly.blocks.iter().map(|block| block.replicas.clone()).collect();
        let used = assembly.blocks[rank].devices.clamp(1, devices.len());
        let world = World::placed(rank, blocks, devices[..used].to_vec());
        let parts = || bulletin.members.iter().filter(|entry| !entry.replicas.is_empty());
        let host = parts().nth(rank).map(|entry| entry.host.as_str());
        let neighbours = parts().filter(|entry| Some(entry.host.as_str()) == host).count();
        let processes = if world.processes() > 1 { Some(self.connect(&world, &assembly)?) } else { None };
        let (number, why) = (bulletin.generation, bulletin.why.clone());
        *self.world() = Some((number, world.clone()));
        let generation = self.member.clone();
        Ok(Meeting { number, world, neighbours, processes, generation, why })
    }

    fn connect(&self, world: &World, assembly: &Assembly) -> std::result::Result<Processes, Symptom> {
        self.member.doing("connection of the processes");
        let gloo = Arc::new(self.connector.connect(assembly)?);
        // From now on the end of the generation ends every wait for the others.
        let engine = gloo.clone();
        self.member.when_over(move || engine.close());
        let blocks = (0..world.processes()).map(|process| world.hosted_by(process)).collect();
        Ok(Processes::new(gloo, self.member.clone(), blocks, self.ordered))
    }

    /// The rendezvous stays until the others have begun without this process.
    fn hand_over(&self, step: usize) {
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(service) = service.as_ref() else { return };
        let deadline = Instant::now() + HANDOVER;
        let begun = |bulletin: Bulletin| {
            let mut parts = bulletin.members.iter().filter(|entry| !entry.replicas.is_empty());
            bulletin.phase == Phase::Running && parts.all(|entry| entry.progress.step > step as u64)
        };
        let others = |bulletin: &Bulletin| bulletin.members.iter().any(|entry| !entry.draining);
        while service.bulletin().is_some_and(|it| others(&it) && !begun(it)) && Instant::now() < deadline {
            std::thread::sleep(GLANCE);
        }
    }

    fn world(&self) -> MutexGuard<'_, Option<(u64, World)>> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All processes of the generation hear that the run is complete, before any of them leaves.
    fn tell_all(&self, generation: u64, world: &World) -> std::result::Result<(), super::rendezvous::Verdict> {
        let complete = format!("{generation}/complete");
        let over = |rank: usize| format!("{generation}/over/{rank}");
        if world.rank() > 0 {
            self.member.get(&[complete], UNHURRIED)?;
            return self.member.set(&over(world.rank()), &[]);
        }
        self.member.set(&complete, &[])?;
        let others: Vec<String> = (1..world.processes()).map(over).collect();
        // The run is written down: whoever has not heard of it will hear that the job is complete.
        drop(self.member.get(&others, self.timeout));
        Ok(())
    }
}

impl Members for Crew {
    fn next(
        &self,
        standing: Standing,
        devices: &[usize],
        mut failure: Option<String>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Next<Meeting>> {
        if devices.is_empty() {
            return Err(Error::Training(failure.unwrap_or_else(|| "no device is left".into())));
        }
        let held = bulletin::Standing { generation: standing.generation, step: standing.step as u64 };
        loop {
            let member = self.member.clone();
            let met = address::say_if_it_takes_long(move || format!("waiting to take part: {}", member.awaited()));
            let called = self.member.next(held, devices.len(), failure.take(), keep)?;
            drop(met);
            let bulletin = match called {
                Next::Begin(bulletin) => bulletin,
                Next::Complete => return Ok(Next::Complete),
                Next::Left => {
                    self.hand_over(standing.step);
                    return Ok(Next::Left);
                }
            };
            match self.enter(&bulletin, devices) {
                Ok(meeting) => return Ok(Next::Begin(meeting)),
                Err(symptom) => drop(self.member.trouble(&symptom.0)),
            }
        }
    }

    fn complete(&self) -> Result<bool> {
        self.member.doing("end of the run");
        let world = self.world().clone();
        Ok(world.is_none_or(|(generation, world)| self.tell_all(generation, &world).is_ok()))
    }

    fn progress(&self, step: usize, images_per_second: f64) {
        self.member.progress(step as u64, images_per_second);
    }

    fn drain(&self) -> bool {
        self.member.drain();
        true
    }

    fn leave(&self, failure: Option<&str>) {
        self.member.leave(failure);
    }
}

impl Generation for Client {
    fn confirm(&self) -> std::result::Result<(), Broken> {
        Client::confirm(self).map_err(|verdict| Broken::Peer(verdict.0))
    }

    fn is_ending(&self) -> bool {
        Client::is_ending(self)
    }
}

/// The rendezvous decides who is to blame.
impl Judge for Client {
    fn doing(&self, activity: &str) {
        Client::doing(self, activity);
    }

    fn verdict(&self, symptom: &Symptom) -> String {
        self.trouble(&symptom.0).0
    }
}
