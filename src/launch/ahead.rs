//! Connections between the processes of an elastic run: those of a generation to come are made while the present one is
//! computed, so that nobody waits for a slow link.
//!
//! A thread of this process follows what the rendezvous says of the generation to come; each attempt to connect has a
//! thread of its own, which ends by itself when another attempt has taken its place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::keys::Keys;
use super::rendezvous::bulletin::Assembly;
use super::rendezvous::{Attempt, Client};
use crate::parallel::engine::Symptom;
use crate::parallel::gloo::{Gloo, Interface, LONGEST};

/// How long one connection between two processes may take; Gloo tries a host that has vanished five times as long.
const CONNECT: Duration = Duration::from_secs(2);

/// Connects this process with the others of a generation.
pub(super) struct Connector {
    member: Arc<Client>,
    interface: Interface,
    limit: Duration,
    /// What is connected already.
    ahead: Mutex<Option<(Attempt, Gloo)>>,
}

impl Connector {
    /// `timeout` bounds the wait for what others publish. Connects ahead of time from now on.
    pub(super) fn start(member: Arc<Client>, interface: Interface, timeout: Duration) -> Arc<Self> {
        let connector =
            Arc::new(Self { member, interface, limit: timeout.max(CONNECT * LONGEST), ahead: Mutex::default() });
        let watched = connector.clone();
        thread::spawn(move || {
            let mut last = None;
            while let Some((attempt, assembly)) = watched.member.next_attempt(last) {
                last = Some(attempt);
                let connector = watched.clone();
                thread::spawn(move || connector.connect_ahead(attempt, &assembly));
            }
        });
        connector
    }

    /// The connections of a generation that begins.
    pub(super) fn connect(&self, assembly: &Assembly) -> Result<Gloo, Symptom> {
        let present = self.member.attempt(assembly.generation);
        if let Some((_, gloo)) = self.ahead().take().filter(|(attempt, _)| *attempt == present) {
            return Ok(gloo);
        }
        self.connect_while(assembly, || true)
    }

    fn connect_ahead(&self, attempt: Attempt, assembly: &Assembly) {
        let member = self.member.clone();
        let connected = self.connect_while(assembly, move || member.expects(attempt));
        let Err(Symptom(why)) = connected.and_then(|gloo| self.keep(attempt, gloo)) else {
            return self.member.connected(attempt, None);
        };
        if self.member.expects(attempt) {
            self.member.connected(attempt, Some(&why));
        }
        if self.member.is_left_out(attempt) {
            tracing::warn!(
                "the run goes on without this process, which stays in reserve and will be tried again: {why}"
            );
        }
    }

    /// Keeps what is connected, but not in the place of what a later attempt has.
    fn keep(&self, attempt: Attempt, gloo: Gloo) -> Result<(), Symptom> {
        let mut ahead = self.ahead();
        if !self.member.expects(attempt) {
            return Err(Symptom("it was connected too late".into()));
        }
        *ahead = Some((attempt, gloo));
        Ok(())
    }

    fn connect_while(&self, assembly: &Assembly, is_apt: impl Fn() -> bool + Send + 'static) -> Result<Gloo, Symptom> {
        let rank = assembly.rank(self.member.id()).ok_or_else(|| Symptom("this process has no part".into()))?;
        let (client, prefix) = (self.member.clone(), format!("{}/", assembly.generation));
        let keys = Keys { client, prefix, limit: self.limit, is_apt: Box::new(is_apt) };
        Gloo::connect(rank, assembly.blocks.len(), &self.interface, Box::new(keys), CONNECT)
    }

    fn ahead(&self) -> MutexGuard<'_, Option<(Attempt, Gloo)>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
