//! Holding the rendezvous of an elastic run, taking it over from another process, and asking it for the run's status.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_membership::RunStatus;
use kiln_membership::rendezvous::election;
use kiln_membership::rendezvous::membership::{MembershipView, Phase};
use kiln_membership::rendezvous::wire::Purpose;
use kiln_membership::rendezvous::{BeforeAttempt, Secret, Service, Terms, query};
use kiln_system::{Error, Result};
use parking_lot::Mutex;

use super::address::{self, HELD};
use crate::config::{ParallelConfig, seconds};

/// How long `train rendezvous` still answers after the end of its run.
const ANSWER_TIME: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(50);
/// How long a trainer does not bind the address again after `train rendezvous` asked for it.
const PRECEDENCE: Duration = Duration::from_secs(15);
/// How long a trainer may take to release the address.
const HANDOVER: Duration = Duration::from_millis(2500);
const BIND_RETRY: Duration = Duration::from_millis(2);

pub(super) type HeldService = Arc<Mutex<Option<Service>>>;

/// The terms of an elastic run; its processes share `secret`.
pub(super) fn terms(parallel: &ParallelConfig, secret: Secret) -> Terms {
    let (timeout, beat) = (seconds(parallel.lost_after), seconds(parallel.heartbeat));
    let addresses = parallel.rendezvous().filter(|all| all.len() > 1).unwrap_or_default();
    // Leases end with the leases of a leader, so they need more heartbeats.
    let beat = if addresses.is_empty() { beat } else { beat.min(election::lease(timeout) / 4) };
    Terms { timeout, beat, addresses: address::texts(&addresses), ..address::terms(parallel, 0, secret) }
}

/// Holds the rendezvous if an address of it is one of this machine and free, until `train rendezvous` asks for it. One
/// process holds one address, so that no process is more than one of several holders.
pub(super) fn hold(places: &[(&str, u16)], terms: &Terms, held: HeldService) -> BeforeAttempt {
    let places: Vec<(String, u16)> = places.iter().map(|(host, port)| (host.to_string(), *port)).collect();
    let terms = terms.clone();
    let elsewhere = std::env::var_os(HELD).is_some();
    let mut replaced: Option<Instant> = None;
    Box::new(move || {
        let mut held = held.lock();
        if let Some(service) = held.take_if(|service| service.is_replaced()) {
            // Dropping it waits for its sessions, and one of them may be this thread's.
            std::thread::spawn(|| drop(service));
            replaced = Some(Instant::now());
        }
        if elsewhere || held.is_some() || replaced.is_some_and(|since| since.elapsed() < PRECEDENCE) {
            return;
        }
        // Only the first address of a name, so that there cannot be two services.
        let first = |(host, port): &(String, u16)| {
            Some(SocketAddr::new(*address::addresses(host, *port).ok()?.first()?, *port))
        };
        let free = places.iter().filter_map(first).find_map(|it| Some((it, TcpListener::bind(it).ok()?)));
        let Some((address, listener)) = free else { return };
        match Service::start(listener, terms.clone()) {
            Ok(service) => {
                service.may_be_replaced();
                *held = Some(service);
            }
            Err(error) => tracing::warn!("cannot hold the rendezvous at {address}: {error}"),
        }
    })
}

pub(super) fn run_status(parallel: &ParallelConfig, drain: Option<usize>) -> Result<RunStatus> {
    let places = address::hosts_and_ports(parallel)?;
    let purpose = drain.map_or(Purpose::Look, Purpose::Drain);
    let address = address::texts(&places).join(",");
    let terms = terms(parallel, address::secret(parallel, &places)?);
    let view = query(&address, &terms, &purpose)?;
    let view = view.ok_or_else(|| Error::PeerLost(format!("no process has come to the rendezvous '{address}' yet")))?;
    let phase = match view.phase {
        Phase::Waiting => "waiting for more processes",
        Phase::Running => "running",
        Phase::Ending => "about to change",
        Phase::Over => "broken off",
        Phase::Complete => "complete",
    };
    let MembershipView { generation, why, members, .. } = view;
    Ok(RunStatus { generation, phase, why, members })
}

pub(super) fn hold_alone(
    bind: SocketAddr,
    parallel: &ParallelConfig,
    listening: &dyn Fn(),
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let places = address::hosts_and_ports(parallel)?;
    if places.iter().all(|(_, port)| *port != bind.port()) {
        return Err(Error::usage(format!(
            "--bind must be an address of --dist-url, but none has the port '{}'; give another --bind",
            bind.port()
        )));
    }
    let terms = terms(parallel, address::secret(parallel, &places)?);
    // Holders of other addresses learn the end of the run with the next claim.
    let claim = if terms.addresses.is_empty() { Duration::ZERO } else { election::lease(terms.timeout) / 2 };
    let service = Service::start(listen(bind, &terms)?, terms)?;
    listening();
    while service.ending().is_none() && !stopped() {
        std::thread::sleep(POLL);
    }
    // Members that are about to leave still get an answer.
    std::thread::sleep(ANSWER_TIME + claim);
    service.ending().unwrap_or(Ok(())).map_err(|verdict| Error::PeerLost(verdict.0))
}

/// Listens at `bind`, after asking a trainer that holds the rendezvous there to release it.
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
            // The old holder may have gone, and another may not have come yet.
            Err(_) if was_asked => {}
            Err(_) => return Err(unusable()),
        }
        // More often than other trainers try to bind the address.
        let retry = Instant::now() + HANDOVER;
        while Instant::now() < retry {
            if let Ok(listener) = TcpListener::bind(bind) {
                return Ok(listener);
            }
            std::thread::sleep(BIND_RETRY);
        }
    }
}

/// Asks the process that holds the rendezvous at `bind` to release it.
fn replace_holder(bind: SocketAddr, terms: &Terms) -> Result<()> {
    let mut answer = Err(Error::PeerLost("no process holds it".into()));
    for host in listening(bind.port()) {
        let is_in_the_way = host == bind.ip() || host.is_unspecified() || bind.ip().is_unspecified();
        if is_in_the_way && matches!(answer, Err(Error::PeerLost(_))) {
            answer = query(&SocketAddr::new(host, bind.port()).to_string(), terms, &Purpose::Replace).map(drop);
        }
    }
    answer
}

/// The addresses of this machine with a listener at `port`.
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

/// Reads an address as the kernel prints it: 32-bit words in the byte order of the machine.
fn from_hexadecimal(address: &str) -> Option<IpAddr> {
    let word = |start| u32::from_str_radix(address.get(start..start + 8)?, 16).ok();
    let bytes: Vec<u8> = (0..address.len()).step_by(8).filter_map(word).flat_map(u32::to_ne_bytes).collect();
    let short = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
    short.or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from)).ok()
}
