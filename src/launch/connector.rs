//! Connects the processes of an elastic run. The pending generation is connected while the current one computes, so
//! that the run does not wait for a slow link.
//!
//! One thread watches the rendezvous for a pending generation and starts a thread per attempt to connect; an attempt
//! that is no longer current ends by itself.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kiln_engine::parallel::engine::Symptom;
use kiln_engine::parallel::gloo::{Gloo, Interface, LONGEST};
use kiln_engine::parallel::{StageEngine, World};
use kiln_membership::rendezvous::membership::Placement;
use kiln_membership::rendezvous::{Attempt, Client};
use parking_lot::Mutex;

use super::member::EngineStore;
use super::stage_engines::stage_engines;

/// How long one connection between two processes may take; for an unreachable host Gloo takes five times as long.
const CONNECT: Duration = Duration::from_secs(2);

/// Connects this process with the other members of a generation.
pub(super) struct Connector {
    member: Arc<Client>,
    interface: Interface,
    limit: Duration,
    /// The connections of the pending generation.
    prepared: Mutex<Option<(Attempt, Gloo)>>,
}

impl Connector {
    /// Starts the watching thread. `timeout` limits the wait for what other processes publish.
    pub(super) fn start(member: Arc<Client>, interface: Interface, timeout: Duration) -> Arc<Self> {
        let connector =
            Arc::new(Self { member, interface, limit: timeout.max(CONNECT * LONGEST), prepared: Mutex::default() });
        let watched = connector.clone();
        thread::spawn(move || {
            let mut last = None;
            while let Some((attempt, placement)) = watched.member.next_attempt(last) {
                last = Some(attempt);
                let connector = watched.clone();
                thread::spawn(move || connector.prepare(attempt, &placement));
            }
        });
        connector
    }

    /// The connections of a generation that begins: prepared, or made now.
    pub(super) fn connect(&self, placement: &Placement) -> Result<Gloo, Symptom> {
        let current = self.member.attempt(placement.generation);
        if let Some((_, gloo)) = self.prepared.lock().take().filter(|(attempt, _)| *attempt == current) {
            return Ok(gloo);
        }
        self.connect_while(placement, || true)
    }

    fn prepare(&self, attempt: Attempt, placement: &Placement) {
        let member = self.member.clone();
        let connected = self.connect_while(placement, move || member.expects(attempt));
        let Err(Symptom(why)) = connected.and_then(|gloo| self.keep(attempt, gloo)) else {
            return self.member.connected(attempt, None);
        };
        if self.member.expects(attempt) {
            self.member.connected(attempt, Some(&why));
        }
        if self.member.is_left_out(attempt) {
            tracing::warn!(
                "the run continues without this process, which stays in reserve and will be tried again: {why}"
            );
        }
    }

    /// Keeps the connections unless a later attempt has replaced this one.
    fn keep(&self, attempt: Attempt, gloo: Gloo) -> Result<(), Symptom> {
        let mut prepared = self.prepared.lock();
        if !self.member.expects(attempt) {
            return Err(Symptom("it connected too late".into()));
        }
        *prepared = Some((attempt, gloo));
        Ok(())
    }

    fn connect_while(
        &self,
        placement: &Placement,
        is_wanted: impl Fn() -> bool + Send + 'static,
    ) -> Result<Gloo, Symptom> {
        let rank = placement.rank(self.member.id()).ok_or_else(|| Symptom("this process has no replica".into()))?;
        let store = Box::new(self.store(placement, "", is_wanted));
        Gloo::connect(rank, placement.blocks.len(), &self.interface, store, CONNECT)
    }

    /// The engines between the processes of each stage of a generation that begins.
    pub(super) fn stages(&self, placement: &Placement, world: &World) -> Result<Vec<Option<StageEngine>>, Symptom> {
        stage_engines(world, &self.interface, |prefix| self.store(placement, prefix, || true), CONNECT)
    }

    /// The store in which engines of a generation meet, under keys with a prefix.
    pub(super) fn store(
        &self,
        placement: &Placement,
        prefix: &str,
        is_wanted: impl Fn() -> bool + Send + 'static,
    ) -> EngineStore {
        let (client, prefix) = (self.member.clone(), format!("{}/{prefix}", placement.generation));
        EngineStore { client, prefix, limit: self.limit, is_wanted: Box::new(is_wanted) }
    }
}
