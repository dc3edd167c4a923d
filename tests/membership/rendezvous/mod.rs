//! Processes of one job meet, share values, and learn the same verdict when one of them is lost; strangers do no harm.

mod adversaries;
mod losses;
mod meeting;
mod participant;
mod placement;
mod refusals;
mod rejections;
mod roster;
mod rules;
mod secret;
mod strict;
mod tls;
mod wire;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use kiln_membership::rendezvous::membership::{MemberStatus, ProcessInfo};
use kiln_membership::rendezvous::{Client, Secret, Service, Terms, Verdict};
use kiln_system::{Error, Result};

/// Known to the processes of the job.
static SECRET: LazyLock<Secret> = LazyLock::new(Secret::random);
/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn terms(size: usize) -> Terms {
    let secret = SECRET.clone();
    let (timeout, beat) = (Duration::from_secs(30), Duration::from_millis(100));
    Terms { job_id: "job-1".into(), secret, size, addresses: Vec::new(), timeout, beat }
}

fn service(terms: &Terms) -> Service {
    Service::start(TcpListener::bind("127.0.0.1:0").unwrap(), terms.clone()).unwrap()
}

fn introduction(rank: usize) -> ProcessInfo {
    let configuration = BTreeMap::from([("batch_size".into(), "8".into()), ("epochs".into(), "2".into())]);
    let (host, process) = (format!("host{rank}"), 100 + rank as u32);
    ProcessInfo { rank: Some(rank), host, process, devices: 2, configuration, ..ProcessInfo::default() }
}

fn join_at(address: &str, terms: &Terms, me: ProcessInfo, patience: Duration) -> Result<Client> {
    Client::join(address, terms, me, patience, Box::new(|| ()))
}

fn join(service: &Service, terms: &Terms, rank: usize) -> Result<Client> {
    join_at(&service.address().to_string(), terms, introduction(rank), PATIENCE)
}

/// Whom a member met, itself included, in rank order; it brought the configuration itself.
fn met(member: &Client) -> Vec<ProcessInfo> {
    let ranked = member.members().into_iter().enumerate();
    let known = |(rank, it): (usize, MemberStatus)| {
        let (host, process, devices) = (it.host, it.process, it.devices);
        ProcessInfo { rank: Some(rank), host, process, devices, ..introduction(rank) }
    };
    ranked.map(known).collect()
}

/// Passes the bytes of each connection on to `to` and back, and shows them to `look`, which may change them: whether
/// they come back, how many came before them, and the bytes.
fn relay(to: SocketAddr, look: impl Fn(bool, usize, &mut [u8]) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, look) = (listener.local_addr().unwrap(), Arc::new(look));
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(to).unwrap();
            let ways = [(near.try_clone().unwrap(), far.try_clone().unwrap(), false), (far, near, true)];
            for (mut from, mut to, is_back) in ways {
                let look = Arc::clone(&look);
                thread::spawn(move || {
                    let (mut buffer, mut before) = ([0; 4096], 0);
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        look(is_back, before, &mut buffer[..count]);
                        before += count;
                        if to.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// All members of the job, in rank order.
fn gather(service: &Service, terms: &Terms) -> Vec<Client> {
    thread::scope(|scope| {
        let joining: Vec<_> = (0..terms.size).map(|rank| scope.spawn(move || join(service, terms, rank))).collect();
        joining.into_iter().map(|member| member.join().unwrap().unwrap()).collect()
    })
}

/// What a join is refused with that first tries again: its patience must be enough for an answer.
fn refused_in_the_end(join: impl Fn(Duration) -> Error) -> String {
    for patience in [400, 4_000, 40_000].map(Duration::from_millis) {
        if let Error::Usage(lines) = join(patience) {
            return lines.concat();
        }
    }
    panic!("no answer");
}

/// The verdict that `member` gets without asking for it.
fn verdict(member: &Client) -> Verdict {
    let (sender, receiver) = std::sync::mpsc::channel();
    member.when_over(move || sender.send(()).unwrap());
    receiver.recv_timeout(PATIENCE).unwrap();
    Verdict(member.end_reason().unwrap())
}
