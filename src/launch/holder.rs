//! Who holds the rendezvous of an elastic run, and what it tells a visitor.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::address::{self, HELD};
use super::elastic::{Attendance, Present};
use super::rendezvous::bulletin::{self, Phase};
use super::rendezvous::wire::Purpose;
use super::rendezvous::{BeforeAttempt, Secret, Service, Terms, Tls, visit};
use crate::error::{Error, Result};
use crate::parallel::ParallelConfig;

/// How long a rendezvous that is held alone stays after the end of its run.
const FAREWELL: Duration = Duration::from_millis(500);
const GLANCE: Duration = Duration::from_millis(50);
/// How long a trainer leaves the rendezvous to somebody who asked for it.
const PRECEDENCE: Duration = Duration::from_secs(15);
/// How long a trainer may take to give the rendezvous up.
const HANDOVER: Duration = Duration::from_millis(2500);
const MOMENT: Duration = Duration::from_millis(2);

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

/// Holds the rendezvous where its address is one of this machine and nobody holds it yet, until `train rendezvous` asks
/// for it.
pub(super) fn hold(host: &str, port: u16, terms: &Terms, held: Holding) -> BeforeAttempt {
    let (host, terms) = (host.to_string(), terms.clone());
    let elsewhere = std::env::var_os(HELD).is_some();
    let mut replaced: Option<Instant> = None;
    Box::new(move || {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(service) = held.take_if(|service| service.is_replaced()) {
            // Its sessions end on threads of others, this one among them.
            std::thread::spawn(|| drop(service));
            replaced = Some(Instant::now());
        }
        if elsewhere || held.is_some() || replaced.is_some_and(|since| since.elapsed() < PRECEDENCE) {
            return;
        }
        // One address, so that there cannot be two of them.
        let Some(address) = address::addresses(&host, port).ok().and_then(|all| all.first().copied()) else { return };
        let Ok(listener) = TcpListener::bind((address, port)) else { return };
        match Service::start(listener, terms.clone()) {
            Ok(service) => {
                service.may_be_replaced();
                *held = Some(service);
            }
            Err(error) => tracing::warn!("cannot hold the rendezvous at {address}:{port}: {error}"),
        }
    })
}

/// Asks the rendezvous who is there.
pub(super) fn attendance(parallel: &ParallelConfig, drain: Option<usize>) -> Result<Attendance> {
    let (host, port) = address::place(parallel)?;
    let errand = drain.map_or(Purpose::Look, Purpose::Drain);
    let address = format!("{host}:{port}");
    let terms = terms(parallel, address::secret(parallel, host, port)?);
    let bulletin = visit(&address, &terms, &errand)?;
    let bulletin = bulletin.ok_or_else(|| Error::PeerLost(format!("nobody came to the rendezvous '{address}' yet")))?;
    let phase = match bulletin.phase {
        Phase::Waiting => "waiting for more processes",
        Phase::Running => "running",
        Phase::Ending => "about to change",
        Phase::Over => "broken off",
        Phase::Complete => "complete",
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

/// Holds the rendezvous until the run is over; calls `listening` once it does.
pub(super) fn hold_alone(
    bind: SocketAddr,
    parallel: &ParallelConfig,
    listening: &dyn Fn(),
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let terms = terms(parallel, address::secret(parallel, &bind.ip().to_string(), bind.port())?);
    let service = Service::start(listen(bind, &terms)?, terms)?;
    listening();
    while service.ending().is_none() && !stopped() {
        std::thread::sleep(GLANCE);
    }
    // Members that are about to leave still hear an answer.
    std::thread::sleep(FAREWELL);
    service.ending().unwrap_or(Ok(())).map_err(|verdict| Error::PeerLost(verdict.0))
}

/// Listens at `bind`; a trainer that holds the rendezvous there gives it up.
fn listen(bind: SocketAddr, terms: &Terms) -> Result<TcpListener> {
    let deadline = Instant::now() + PRECEDENCE;
    let mut was_asked = false;
    loop {
        let reason = match TcpListener::bind(bind) {
            Ok(listener) => return Ok(listener),
            Err(reason) => reason,
        };
        let unusable = || Error::usage(format!("cannot listen at '{bind}': {reason}; give another --bind"));
        if reason.kind() != ErrorKind::AddrInUse || Instant::now() > deadline {
            return Err(unusable());
        }
        match replace_holder(bind, terms) {
            Ok(()) => was_asked = true,
            Err(refusal @ Error::Usage(_)) => return Err(refusal),
            // Between two holders nobody answers.
            Err(_) if was_asked => {}
            Err(_) => return Err(unusable()),
        }
        // More often than other trainers look whether the rendezvous is held.
        let retry = Instant::now() + HANDOVER;
        while Instant::now() < retry {
            if let Ok(listener) = TcpListener::bind(bind) {
                return Ok(listener);
            }
            std::thread::sleep(MOMENT);
        }
    }
}

/// Asks the holder of the rendezvous that keeps `bind` taken to give it up.
fn replace_holder(bind: SocketAddr, terms: &Terms) -> Result<()> {
    let tls = terms.tls.as_ref().map(Tls::of_own_name).transpose()?;
    let terms = Terms { tls, ..terms.clone() };
    let mut answer = Err(Error::PeerLost("nobody holds it".into()));
    for host in listening(bind.port()) {
        let is_in_the_way = host == bind.ip() || host.is_unspecified() || bind.ip().is_unspecified();
        if is_in_the_way && matches!(answer, Err(Error::PeerLost(_))) {
            answer = visit(&SocketAddr::new(host, bind.port()).to_string(), &terms, &Purpose::Replace).map(drop);
        }
    }
    answer
}

/// The addresses of this machine at which somebody listens at `port`.
fn listening(port: u16) -> Vec<IpAddr> {
    const LISTEN: &str = "0A";
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let host = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (host, at) = fields.next()?.split_once(':')?;
        let is_it = u16::from_str_radix(at, 16) == Ok(port) && fields.nth(1) == Some(LISTEN);
        is_it.then(|| from_hexadecimal(host)).flatten()
    };
    tables.iter().flat_map(|table| table.lines()).filter_map(host).collect()
}

/// An address as the kernel prints it: 32-bit words in the byte order of the machine.
fn from_hexadecimal(address: &str) -> Option<IpAddr> {
    let word = |start| u32::from_str_radix(address.get(start..start + 8)?, 16).ok();
    let bytes: Vec<u8> = (0..address.len()).step_by(8).filter_map(word).flat_map(u32::to_ne_bytes).collect();
    let short = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
    short.or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from)).ok()
}
