//! The rendezvous over real sockets: a stranger with a damaged session, and a process that knows the secret and is
//! wrong. The service still answers afterwards, and proves itself. What TLS draws is new in every run.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use kiln_membership::rendezvous::greeting;
use kiln_membership::rendezvous::membership::{
    MembershipView, Phase, Placement, ProcessInfo, Progress, Ready, StateVersion,
};
use kiln_membership::rendezvous::placement::Block;
use kiln_membership::rendezvous::refusal::Refusal;
use kiln_membership::rendezvous::wire::{Envelope, FromMember, FromService, Purpose, decode, encode};
use kiln_membership::rendezvous::{Secret, Service, Terms, query};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::damage::Random;
use super::target::{Bound, fuzz};

const BOUND: Bound = Bound { factor: 64, mib: 64, inputs: 200 };
/// Far more than an answer takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who knows the secret gets as far as anybody does without one.
fn terms(size: usize) -> Terms {
    let (timeout, beat) = (Duration::from_secs(30), Duration::from_secs(1));
    Terms { job_id: "job".into(), secret: Secret::none(), size, addresses: Vec::new(), timeout, beat }
}

fn service(terms: &Terms) -> Service {
    Service::start(TcpListener::bind("127.0.0.1:0").unwrap(), terms.clone()).unwrap()
}

/// The holder of the only address of those that elect a leader, which it becomes.
fn elected(runtime: &Runtime) -> (Service, Terms) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap().to_string()];
    let (timeout, beat) = (Duration::from_millis(600), Duration::from_millis(50));
    let terms = Terms { addresses, timeout, beat, ..terms(0) };
    let service = Service::start(listener, terms.clone()).unwrap();
    let look = || session_of(runtime, &service, &terms, encode(&Purpose::Look), Vec::new());
    while look() == Some(FromService::Elsewhere) {
        std::thread::sleep(beat);
    }
    (service, terms)
}

/// A session: what goes out, and what comes back.
async fn open(address: &str) -> Option<(mpsc::Sender<Envelope>, Streaming<Envelope>)> {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.ok()?;
    let (sender, receiver) = mpsc::channel(64);
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.ok()?;
    let (codec, path) = (ProstCodec::default(), PathAndQuery::from_static("/kiln.Rendezvous/Session"));
    let answers = grpc.streaming(Request::new(ReceiverStream::new(receiver)), path, codec).await.ok()?;
    Some((sender, answers.into_inner()))
}

/// Introduces itself by `introduction`, then sends `messages`; returns the first answer to the introduction.
async fn session(address: &str, terms: &Terms, introduction: Vec<u8>, messages: Vec<Vec<u8>>) -> Option<FromService> {
    let (sender, mut answers) = open(address).await?;
    sender.send(greeting::hello(terms)).await.ok()?;
    answers.message().await.ok()??;
    sender.send(Envelope { body: introduction }).await.ok()?;
    let first = answers.message().await.ok()??;
    for body in messages {
        sender.send(Envelope { body }).await.ok()?;
    }
    drop(sender);
    while let Ok(Some(_)) = answers.message().await {}
    decode(&first.body).ok()
}

/// Fails unless the service answers a process that asks for the members.
fn answers(runtime: &Runtime, service: &Service, terms: &Terms) {
    let look = session_of(runtime, service, terms, encode(&Purpose::Look), Vec::new());
    assert!(look.is_some(), "the service does not answer");
}

fn session_of(
    runtime: &Runtime,
    service: &Service,
    terms: &Terms,
    introduction: Vec<u8>,
    messages: Vec<Vec<u8>>,
) -> Option<FromService> {
    let address = service.address().to_string();
    let all = session(&address, terms, introduction, messages);
    runtime.block_on(async { timeout(PATIENCE, all).await.expect("the session does not end") })
}

impl Random {
    fn extreme(&mut self) -> u64 {
        *self.pick(&[0, 1, 2, 3, 4, 1 << 20, u64::MAX / 2, u64::MAX])
    }

    fn word(&mut self) -> String {
        let (word, times) = (*self.pick(&["", "a", "h\n", "\u{202e}x", "1/key"]), *self.pick(&[1, 1, 300]));
        word.repeat(times)
    }

    fn progress(&mut self) -> Progress {
        let images_per_second = *self.pick(&[0.0, f64::NAN, f64::INFINITY, -1e308]);
        Progress { activity: self.word(), step: self.extreme(), images_per_second, waited: [images_per_second; 2] }
    }

    fn version(&mut self) -> StateVersion {
        StateVersion { generation: self.extreme(), step: self.extreme() }
    }

    fn placement(&mut self) -> Option<Placement> {
        let block = |random: &mut Self| Block {
            id: random.below(3) as u64,
            devices: random.extreme() as usize,
            replicas: random.extreme() as usize..random.extreme() as usize,
        };
        let blocks = (0..self.below(4)).map(|_| block(self)).collect();
        self.chance(30).then(|| Placement { generation: self.extreme(), blocks })
    }

    fn introduction(&mut self) -> Purpose {
        match self.below(12) {
            0 => return Purpose::Drain(self.extreme() as usize),
            1 => return Purpose::Replace,
            2 => {
                let (candidate, generation) = (self.below(3) as u64, self.extreme());
                let lease = Duration::from_millis(if self.chance(70) { 200 } else { self.extreme() });
                let over = self.chance(10).then(|| Refusal::permanent(self.word()));
                return Purpose::Claim { candidate, lease, generation, over };
            }
            _ => {}
        }
        let good = [("elastic", "1:4"), ("world_size", "4"), ("heartbeat", "1"), ("lost_after", "10")];
        let good = good.into_iter().chain([("elastic_timeout", "600"), ("timeout", "60")]);
        let wrong = ["0", "-1", "nan", "1e308", "18446744073709551615", "0:0", "4:1", "1:18446744073709551615"];
        let configuration: BTreeMap<_, _> = good
            .map(|(key, value)| {
                (format!("parallel.{key}"), if self.chance(5) { *self.pick(&wrong) } else { value }.to_string())
            })
            .collect();
        Purpose::Join(ProcessInfo {
            id: self.below(3) as u64,
            rank: self.chance(50).then(|| self.below(3)),
            host: self.word(),
            process: 1,
            devices: if self.chance(70) { 1 } else { self.extreme() as usize },
            nanoseconds: if self.chance(70) { 0 } else { self.extreme() },
            configuration,
            holds: if self.chance(70) { StateVersion::default() } else { self.version() },
            latest_generation: if self.chance(70) { 0 } else { self.extreme() },
            computing: self.placement(),
            draining: self.chance(20),
            peers: BTreeMap::from([(self.extreme(), self.word())]),
        })
    }

    fn message(&mut self) -> FromMember {
        match self.below(8) {
            0 => FromMember::Set { id: self.extreme(), key: self.word(), value: vec![7; self.below(5000)] },
            1 => {
                let keys = (0..self.below(3)).map(|_| self.word()).collect();
                FromMember::Get { id: self.extreme(), keys, limit: Duration::from_millis(self.extreme()) }
            }
            2 => FromMember::Trouble(self.progress(), self.extreme(), self.word()),
            3 => FromMember::Leave(self.progress(), self.chance(50).then(|| self.word())),
            4 => {
                let (generation, holds, devices) = (self.extreme(), self.version(), self.extreme() as usize);
                let reason = self.chance(30).then(|| self.word());
                FromMember::Ready(Ready { generation, holds, devices, reason })
            }
            5 => FromMember::Drain,
            6 => FromMember::Connected(self.extreme()),
            _ => FromMember::Beat(self.progress()),
        }
    }

    /// As it travels, sometimes damaged.
    fn bytes(&mut self, good: Vec<u8>) -> Vec<u8> {
        if self.chance(20) { self.damaged(&[good]) } else { good }
    }
}

/// What each side reads before anything is known of the other one, and what a member reads.
#[test]
fn greetings_and_views() {
    let (terms, pending) = (terms(2), Placement { generation: 2, blocks: Vec::new() });
    let (phase, why, members) = (Phase::Running, "host b joined".into(), Vec::new());
    let view = FromService::View(MembershipView { generation: 1, phase, why, members, pending: Some(pending) });
    let answer = greeting::answer(Some(Refusal::permanent("no")));
    let corpus = [greeting::hello(&terms).body, answer.body, encode(&view)];
    fuzz(Bound { inputs: 2000, ..BOUND }, |random| {
        let envelope = Envelope { body: random.damaged(&corpus) };
        let _ = (greeting::refusal(&envelope), decode::<FromService>(&envelope.body));
        (envelope.body.len(), greeting::greet(&terms, &envelope).is_ok())
    });
}

#[test]
fn wrong_members() {
    let runtime = Runtime::new().unwrap();
    fuzz(BOUND, |random| {
        let (service, terms) = match random.below(3) {
            size @ (0 | 2) => {
                let terms = terms(size);
                (service(&terms), terms)
            }
            _ => elected(&runtime),
        };
        let (service, terms) = (&service, &terms);
        let (mut length, mut accepted) = (0, false);
        for _ in 0..1 + random.below(4) {
            let introduction = random.introduction();
            let introduction = random.bytes(encode(&introduction));
            let count = random.below(12);
            let messages: Vec<_> = (0..count)
                .map(|_| {
                    let message = random.message();
                    random.bytes(encode(&message))
                })
                .collect();
            length += introduction.len() + messages.iter().map(Vec::len).sum::<usize>();
            let answer = session_of(&runtime, service, terms, introduction, messages);
            accepted |= answer.is_some_and(|answer| !matches!(answer, FromService::Refusal(_)));
        }
        answers(&runtime, service, terms);
        (length, accepted)
    });
}

/// What a member sends for its introduction, byte by byte.
fn recorded(terms: &Terms) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (service, address) = (service(terms), listener.local_addr().unwrap());
    let relay = std::thread::spawn(move || {
        let (mut near, mut far) = (listener.accept().unwrap().0, TcpStream::connect(service.address()).unwrap());
        let (mut back, mut ahead) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back, &mut ahead));
        let (mut tape, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = near.read(&mut buffer) {
            tape.extend_from_slice(&buffer[..count]);
            far.write_all(&buffer[..count]).unwrap();
        }
        tape
    });
    assert_eq!(query(&address.to_string(), terms, &Purpose::Look).unwrap(), None);
    relay.join().unwrap()
}

#[test]
fn strangers() {
    let terms = Terms { secret: Secret::random(), ..terms(0) };
    let (service, corpus) = (service(&terms), [recorded(&terms)]);
    fuzz(BOUND, |random| {
        let bytes = random.damaged(&corpus);
        let mut stream = TcpStream::connect(service.address()).unwrap();
        // The service may have closed the connection before all is sent.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let is_closed = stream
            .read_to_end(&mut answer)
            .map_or_else(|error| error.kind() != std::io::ErrorKind::WouldBlock, |_| true);
        assert!(is_closed, "the service neither answers nor closes the connection");
        query(&service.address().to_string(), &terms, &Purpose::Look).expect("the service does not answer");
        // As long as an answer to what is not damaged.
        (bytes.len(), answer.len() > 200)
    });
}
