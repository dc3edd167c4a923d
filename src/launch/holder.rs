//! Who holds the rendezvous of an elastic run, and what it tells a visitor.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::address::{self, HELD};
use super::elastic::{Attendance, Present};
use super::rendezvous::bulletin::{self, Phase};
use super::rendezvous::{BeforeAttempt, Errand, Secret, Service, Terms, visit};
use crate::error::{Error, Result};
use crate::parallel::ParallelConfig;

/// How long a rendezvous that is held alone stays after the end of its run.
const FAREWELL: Duration = Duration::from_millis(500);
const GLANCE: Duration = Duration::from_millis(50);

/// The rendezvous, where it is held by this process.
pub(super) type Holding = Arc<Mutex<Option<Service>>>;

/// The terms on which processes of an elastic run meet that share `secret`.
pub(super) fn terms(parallel: &ParallelConfig, secret: Secret) -> Terms {
    let (timeout, beat) = (seconds(parallel.lost_after), seconds(parallel.heartbeat));
    Terms { timeout, beat, ..address::terms(parallel, 0, secret) }
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 100)
}

/// Holds the rendezvous where its address is one of this machine and nobody holds it yet.
pub(super) fn hold(host: &str, port: u16, terms: &Terms, held: Holding) -> BeforeAttempt {
    let (host, terms) = (host.to_string(), terms.clone());
    let elsewhere = std::env::var_os(HELD).is_some();
    Box::new(move || {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if elsewhere || held.is_some() {
            return;
        }
        // One address, so that there cannot be two of them.
        let Some(address) = address::addresses(&host, port).ok().and_then(|all| all.first().copied()) else { return };
        let Ok(listener) = TcpListener::bind((address, port)) else { return };
        match Service::start(listener, terms.clone()) {
            Ok(service) => *held = Some(service),
            Err(error) => tracing::warn!("cannot hold the rendezvous at {address}:{port}: {error}"),
        }
    })
}

/// Asks the rendezvous who is there.
pub(super) fn attendance(parallel: &ParallelConfig, drain: Option<usize>) -> Result<Attendance> {
    let (host, port) = address::place(parallel)?;
    let errand = drain.map_or(Errand::Look, Errand::Drain);
    let address = format!("{host}:{port}");
    let terms = terms(parallel, address::secret(parallel, host, port)?);
    let bulletin = visit(&address, &terms, errand)?;
    let bulletin = bulletin.ok_or_else(|| Error::PeerLost(format!("nobody came to the rendezvous '{address}' yet")))?;
    let phase = match bulletin.phase {
        Phase::Waiting => "waiting for more processes",
        Phase::Running => "running",
        Phase::Ending => "about to change",
        Phase::Over => "broken off",
    };
    let present = |(index, entry): (usize, bulletin::Entry)| Present {
        rank: (!entry.replicas.is_empty()).then_some(index),
        host: entry.host,
        process: entry.process,
        devices: entry.devices,
        replicas: entry.replicas,
        leaves: entry.draining,
        step: entry.progress.step,
        images_per_second: entry.progress.images_per_second,
    };
    let (generation, why) = (bulletin.generation, bulletin.why);
    Ok(Attendance { generation, phase, why, present: bulletin.members.into_iter().enumerate().map(present).collect() })
}

/// Holds the rendezvous until the run is over.
pub(super) fn hold_alone(bind: SocketAddr, parallel: &ParallelConfig, stopped: &dyn Fn() -> bool) -> Result<()> {
    let terms = terms(parallel, address::secret(parallel, &bind.ip().to_string(), bind.port())?);
    let listener = TcpListener::bind(bind)
        .map_err(|reason| Error::usage(format!("cannot listen at '{bind}': {reason}; give another --bind")))?;
    let service = Service::start(listener, terms)?;
    while service.ending().is_none() && !stopped() {
        std::thread::sleep(GLANCE);
    }
    // Members that are about to leave still hear an answer.
    std::thread::sleep(FAREWELL);
    service.ending().unwrap_or(Ok(())).map_err(|verdict| Error::PeerLost(verdict.0))
}
