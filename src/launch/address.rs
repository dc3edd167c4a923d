//! The address and the terms of the rendezvous, read from the configuration.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use kiln_engine::parallel::gloo::Interface;
use kiln_membership::rendezvous::membership::ProcessInfo;
use kiln_membership::rendezvous::{Secret, Terms, secret_of_user};
use kiln_system::{Error, Result};

use crate::config::ParallelConfig;

/// The environment variable with the job's secret, if no file holds it.
pub(super) const SECRET: &str = "KILN_JOB_SECRET";
/// Set if another program than a trainer holds the rendezvous.
pub(super) const HELD: &str = "KILN_RENDEZVOUS_HELD";
/// The longest time between two heartbeats in a job of fixed membership.
const BEAT: Duration = Duration::from_secs(1);
/// Where Linux lists the network interfaces.
const INTERFACES: &str = "/sys/class/net";
/// A longer wait is explained to the user.
const WARN_AFTER: Duration = Duration::from_secs(5);

/// Hosts and ports of `--dist-url`, at least one.
pub(super) fn hosts_and_ports(parallel: &ParallelConfig) -> Result<Vec<(&str, u16)>> {
    parallel.rendezvous().ok_or_else(|| {
        Error::usage(format!("dist url must be tcp://HOST:PORT, got '{}'; correct --dist-url", parallel.dist_url))
    })
}

/// The first host and port of `--dist-url`.
pub(super) fn host_and_port(parallel: &ParallelConfig) -> Result<(&str, u16)> {
    Ok(hosts_and_ports(parallel)?[0])
}

pub(super) fn texts(addresses: &[(&str, u16)]) -> Vec<String> {
    addresses.iter().map(|(host, port)| format!("{host}:{port}")).collect()
}

/// The terms of a job of `size` processes that share `secret`; the size of an elastic job is 0.
pub(super) fn terms(parallel: &ParallelConfig, size: usize, secret: Secret) -> Terms {
    let (job_id, timeout) = (parallel.job_id.clone(), parallel.limit());
    Terms { job_id, secret, size, addresses: Vec::new(), timeout, beat: BEAT.min(timeout / 10) }
}

/// The secret from the file or the environment variable, if one is given.
pub(super) fn given_secret(parallel: &ParallelConfig) -> Result<Option<Secret>> {
    match std::env::var(SECRET) {
        _ if !parallel.job_secret_file.as_os_str().is_empty() => Secret::from_file(&parallel.job_secret_file).map(Some),
        Ok(text) => Secret::from_text(&text).map(Some),
        Err(_) => Ok(None),
    }
}

/// The secret of a job with its rendezvous at `places`: the given one, or on loopback addresses this user's own. With
/// `--insecure` there is none, and any process that reaches the rendezvous can join.
pub(super) fn secret(parallel: &ParallelConfig, places: &[(&str, u16)]) -> Result<Secret> {
    let given = given_secret(parallel)?.or(parallel.insecure.then(Secret::none));
    // Loopback addresses among several are always refused.
    let is_local = (given.is_none() || places.len() > 1) && are_local(places)?;
    match given {
        Some(secret) => return Ok(secret),
        None if is_local => return secret_of_user(),
        None => {}
    }
    Err(Error::usage(format!(
        "processes on a network must share a secret, got none for '{}'; write one with 'train secret FILE' and give it \
         to all of them with --job-secret-file (or {SECRET}), or run without a secret with --insecure",
        parallel.dist_url
    )))
}

/// Whether all `places` are on loopback addresses.
///
/// # Errors
/// A usage error if only some are: each machine would take such an address for its own, and two leaders could have a
/// majority. Also if a single place has no address; the machine of one of several may be lost with its name.
fn are_local(places: &[(&str, u16)]) -> Result<bool> {
    if let [(host, port)] = places {
        return Ok(addresses(host, *port)?.iter().all(IpAddr::is_loopback));
    }
    let leads_home = |it: &IpAddr| it.is_loopback() || it.is_unspecified();
    let is_local = |&&(host, port): &&(&str, u16)| addresses(host, port).is_ok_and(|all| all.iter().any(leads_home));
    match places.iter().filter(is_local).count() {
        0 => Ok(false),
        local if local == places.len() => Ok(true),
        _ => Err(Error::usage(
            "--dist-url mixes network addresses and loopback addresses, as in 127.0.0.1; use addresses that reach the \
             same machine from everywhere",
        )),
    }
}

pub(super) fn addresses(host: &str, port: u16) -> Result<Vec<IpAddr>> {
    let unknown = |reason: std::io::Error| {
        Error::usage(format!("the host '{host}' of the dist url has no address: {reason}; correct --dist-url"))
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    Ok((bare, port).to_socket_addrs().map_err(unknown)?.map(|address| address.ip()).collect())
}

/// Refuses a `--dist-interface` that this machine does not have.
///
/// # Errors
/// [`Error::Usage`] with those that it has.
pub(super) fn check_interface(parallel: &ParallelConfig) -> Result<()> {
    let wanted = &parallel.dist_interface;
    let listed = std::fs::read_dir(INTERFACES).into_iter().flatten().flatten();
    let mut known: Vec<String> = listed.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    known.sort();
    // An interface may have further addresses under names such as eth0:1.
    let name = wanted.split(':').next().unwrap_or_default();
    if wanted.is_empty() || known.is_empty() || known.iter().any(|known| known == name) {
        return Ok(());
    }
    let known = known.join(", ");
    Err(Error::usage(format!(
        "there is no network interface '{wanted}', this machine has {known}; use one of these with --dist-interface"
    )))
}

/// The network interface for collectives: the given one, or the interface of the first route to the rendezvous.
pub(super) fn interface(parallel: &ParallelConfig, places: &[(&str, u16)]) -> Result<Interface> {
    if !parallel.dist_interface.is_empty() {
        return Ok(Interface::Named(parallel.dist_interface.clone()));
    }
    let mut routes = places.iter().map(|&(host, port)| route(host, port));
    let first = routes.next().expect("a dist url has an address");
    first.or_else(|error| routes.find_map(Result::ok).ok_or(error))
}

fn route(host: &str, port: u16) -> Result<Interface> {
    let address = addresses(host, port)?.first().copied().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    // Connecting a UDP socket sends nothing; it only selects the route.
    let local = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, port))?;
        socket.local_addr()
    });
    let local = local.map_err(|reason| {
        Error::usage(format!("no route to '{host}:{port}': {reason}; correct --dist-url, or give --dist-interface"))
    })?;
    Ok(Interface::At(local.ip().to_string()))
}

/// What this process sends about itself when it joins.
pub(super) fn process_info(
    parallel: &ParallelConfig,
    rank: Option<usize>,
    configuration: BTreeMap<String, String>,
    nanoseconds: u64,
) -> ProcessInfo {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (process, devices) = (std::process::id(), parallel.gpu_ids.len());
    ProcessInfo { rank, host, process, devices, nanoseconds, configuration, ..ProcessInfo::default() }
}

/// Logs `what` as a warning unless the returned value is dropped within [`WARN_AFTER`].
pub(super) fn warn_if_slow(what: impl FnOnce() -> String + Send + 'static) -> Sender<()> {
    let (met, waiting) = channel();
    std::thread::spawn(move || {
        if waiting.recv_timeout(WARN_AFTER) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{}", what());
        }
    });
    met
}
