//! Whoever is at the port or at the address without the secret: members are not ended, not kept out, and not told
//! anything.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use kiln_membership::rendezvous::membership::ProcessInfo;
use kiln_membership::rendezvous::{Client, Secret, Service, Terms};

use super::*;
use crate::command::succeeded;

/// Far more than it takes to join.
const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const SECRET: &str = "known to the processes of this run";

pub(super) fn terms(secret: &str) -> Terms {
    let secret = Secret::from_text(secret).unwrap();
    let (timeout, beat) = (LOST_AFTER, LOST_AFTER / 15);
    Terms { job_id: "kiln".into(), secret, size: 0, addresses: Vec::new(), timeout, beat }
}

/// A service or a program at an address that members believe to be their rendezvous', and how often one came to it.
struct Impostor {
    came: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    address: SocketAddr,
    thread: thread::JoinHandle<()>,
}

impl Impostor {
    /// Passes what comes to `port` on to `greet`.
    fn new(port: u16, greet: impl Fn(TcpStream) + Send + 'static) -> Self {
        let listener = bind(port);
        let address = listener.local_addr().unwrap();
        let (came, is_over): (Arc<AtomicUsize>, Arc<AtomicBool>) = Default::default();
        let (counter, end) = (came.clone(), is_over.clone());
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                greet(stream);
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { came, is_over, address, thread }
    }

    /// Returns when members have come several times, and leaves the address.
    fn meets_members(self) {
        let before = self.came.load(Ordering::SeqCst);
        until("members come again", || self.came.load(Ordering::SeqCst) >= before + 6);
        self.is_over.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).unwrap();
        self.thread.join().unwrap();
    }
}

/// Listens as soon as nobody else does.
fn bind(port: u16) -> TcpListener {
    let mut listener = None;
    until("the port is free", || {
        listener = TcpListener::bind(("127.0.0.1", port)).ok();
        listener.is_some()
    });
    listener.unwrap()
}

/// Passes bytes on in both directions until either side has ended.
fn relay(near: TcpStream, to: SocketAddr) {
    let far = TcpStream::connect(to).unwrap();
    let pump = |mut from: TcpStream, mut to: TcpStream| {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Both);
    };
    let (back, ahead) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    thread::spawn(move || pump(back, ahead));
    pump(near, far);
}

#[test]
fn whoever_takes_the_address_of_a_lost_rendezvous_ends_nobody() {
    let job = Job::new("1:4", &ENDLESS);
    let member = || {
        let mut command = job.member();
        spawn(command.env("KILN_JOB_SECRET", SECRET).env("KILN_RENDEZVOUS_HELD", "elsewhere"))
    };
    let rendezvous = || {
        let mut command = job.place.bare(&["rendezvous", "--bind", &format!("127.0.0.1:{}", job.port)]);
        spawn(command.env("KILN_JOB_SECRET", SECRET))
    };
    let mut first = rendezvous();
    let members = [member(), member()];
    until("both compute", || job.generations().last().is_some_and(|generation| generation.members == 2));
    kill(&mut first);
    Impostor::new(job.port, |mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 410 the words of a stranger\r\n\r\n");
    })
    .meets_members();
    let others = [
        ("of another secret", terms("known to the processes of another run")),
        ("of another job", Terms { job_id: "another".into(), ..terms(SECRET) }),
        ("of fixed membership", Terms { size: 2, ..terms(SECRET) }),
    ];
    for (what, terms) in others {
        let service = Service::start(TcpListener::bind("127.0.0.1:0").unwrap(), terms).unwrap();
        let address = service.address();
        eprintln!("a service {what}");
        Impostor::new(job.port, move |stream| relay(stream, address)).meets_members();
    }
    bind(job.port);
    let second = rendezvous();
    job.steps(3);
    for child in members {
        signal(&child, "TERM");
        let lines = ends(child, Some(143));
        assert!(!lines.concat().contains("stranger"), "{lines:?}");
    }
    assert!(!end(second).concat().contains("stranger"));
    job.is_calm();
}

fn process_info(process: u32) -> ProcessInfo {
    let configuration = [
        ("parallel.elastic", "200:200"),
        ("parallel.world_size", "200"),
        ("parallel.stages", "1"),
        ("parallel.heartbeat", "1"),
        ("parallel.lost_after", "60"),
        ("parallel.elastic_timeout", "600"),
        ("parallel.timeout", "30"),
    ];
    let configuration = configuration.map(|(key, value)| (key.into(), value.into())).into();
    ProcessInfo { host: "node".into(), process, devices: 1, configuration, ..ProcessInfo::default() }
}

fn join(address: &str, process: u32, patience: Duration) -> kiln_system::Result<Client> {
    let terms = Terms { timeout: Duration::from_secs(60), beat: Duration::from_secs(1), ..terms(SECRET) };
    Client::join(address, &terms, process_info(process), patience, Box::new(|| ()))
}

/// `train rendezvous` with the secret of these tests, and its address.
fn rendezvous(place: &Workplace) -> (Child, String) {
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = place.bare(&["rendezvous", "--bind", &address]);
    let child = spawn(command.env("KILN_JOB_SECRET", SECRET));
    until("the rendezvous listens", || TcpStream::connect(&address).is_ok());
    (child, address)
}

fn members(place: &Workplace, address: &str) -> Output {
    place.bare(&["members", "--dist-url", &format!("tcp://{address}")]).env("KILN_JOB_SECRET", SECRET).output().unwrap()
}

fn end(mut child: Child) -> Vec<String> {
    signal(&child, "TERM");
    wait(&mut child);
    errors(&child.wait_with_output().unwrap())
}

#[test]
fn a_hundred_members_and_a_visitor_find_places() {
    let place = Workplace::new();
    let (service, address) = rendezvous(&place);
    let all: Vec<_> = thread::scope(|scope| {
        let join = |process| {
            scope.spawn({
                let address = &address;
                move || join(address, process, PATIENCE)
            })
        };
        let joining: Vec<_> = (0..100).map(join).collect();
        joining.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    let table = succeeded(&members(&place, &address));
    assert_eq!(table.lines().filter(|line| line.contains(" node ")).count(), 100, "{table}");
    drop(all);
    end(service);
}

/// Holds as many connections as there are places for, and connects anew whenever one is closed.
fn crowd(address: &str, is_over: &AtomicBool) {
    let mut held = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        held.retain_mut(|stream: &mut TcpStream| match stream.read(&mut [0; 64]) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        });
        if held.len() < 300
            && let Ok(stream) = TcpStream::connect(address)
        {
            stream.set_nonblocking(true).unwrap();
            held.push(stream);
        }
    }
}

#[test]
fn strangers_who_come_again_and_again_keep_no_member_out() {
    let place = Workplace::new();
    let (service, address) = rendezvous(&place);
    let is_over = AtomicBool::new(false);
    let all: Vec<_> = thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| crowd(&address, &is_over))));
        let all = (0..5).map(|process| join(&address, process, PATIENCE)).collect();
        is_over.store(true, Ordering::SeqCst);
        all
    });
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    drop(all);
    let log = end(service);
    assert!(log.len() <= 3, "a line for each of them: {log:?}");
}

#[test]
fn strangers_who_come_again_and_again_keep_no_visitor_out() {
    let place = Workplace::new();
    let (service, address) = rendezvous(&place);
    let first = join(&address, 0, PATIENCE).unwrap();
    let is_over = AtomicBool::new(false);
    let answers: Vec<_> = thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| crowd(&address, &is_over))));
        let answers = (0..3).map(|_| members(&place, &address)).collect();
        is_over.store(true, Ordering::SeqCst);
        answers
    });
    answers.iter().for_each(|answer| drop(succeeded(answer)));
    drop(first);
    end(service);
}

#[test]
fn those_who_are_turned_away_are_counted() {
    let place = Workplace::new();
    let (service, address) = rendezvous(&place);
    for _ in 0..50 {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nthe words of a stranger").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let wrong = |_| {
        let mut command = place.bare(&["members", "--dist-url", &format!("tcp://{address}")]);
        command.env("KILN_JOB_SECRET", "known to nobody else than this").output().unwrap()
    };
    for output in (0..2).map(wrong) {
        assert_eq!(output.status.code(), Some(2));
        let line = errors(&output).concat();
        assert!(line.contains("did not prove that it knows the job's secret") && line.contains(&address), "{line}");
    }
    let log = end(service);
    assert!(log.len() == 2 && log[1].contains("51 more connections"), "{log:?}");
    assert!(!log.concat().contains("stranger"), "{log:?}");
}

/// How many connections a process has.
fn sockets(process: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    files
        .filter_map(|file| file.path().read_link().ok())
        .filter(|it| it.to_string_lossy().starts_with("socket"))
        .count()
}

#[test]
fn the_connection_of_a_stopped_member_ends_with_its_seat() {
    let job = Job::new("1:4", &ENDLESS);
    let rendezvous = job.rendezvous();
    let first = job.start_elsewhere(&[]);
    until("the run begins", || !job.run().steps().is_empty());
    let second = job.start_elsewhere(&[]);
    let size = |count| job.generations().last().is_some_and(|generation| generation.members == count);
    until("both compute", || size(2));
    let both = sockets(rendezvous.id());
    signal(&second, "STOP");
    until("the first goes on alone", || size(1));
    until("the connection ends", || sockets(rendezvous.id()) < both);
    signal(&second, "CONT");
    until("it is back", || size(2));
    for child in [first, second] {
        signal(&child, "TERM");
        ends(child, Some(143));
    }
    end(rendezvous);
}

fn with_home(mut command: Command, home: &std::path::Path) -> Output {
    command.env("XDG_STATE_HOME", home).env_remove("KILN_JOB_SECRET").output().unwrap()
}

/// What `train members` of the user with this home says.
fn query(place: &Workplace, port: u16, home: &std::path::Path) -> (Option<i32>, String) {
    let url = format!("--dist-url=tcp://127.0.0.1:{port}");
    let output = with_home(place.bare(&["members", &url, "--drain=0"]), home);
    (output.status.code(), errors(&output).concat())
}

#[test]
fn another_user_of_the_machine_neither_lists_nor_drains() {
    let job = Job::new("1:4", &ENDLESS);
    let (home, other) = (job.place.path("home"), job.place.path("other"));
    let mut command = job.member();
    let member = spawn(command.env("XDG_STATE_HOME", &home).env_remove("KILN_JOB_SECRET"));
    until("the run begins", || !job.run().steps().is_empty());
    let secret = home.join("kiln/secret");
    let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&secret), mode(&home.join("kiln"))), (0o600, 0o700));
    let (code, line) = query(&job.place, job.port, &other);
    assert!(code == Some(2) && line.contains("--job-secret-file"), "{line}");
    assert_ne!(std::fs::read(&secret).unwrap(), std::fs::read(other.join("kiln/secret")).unwrap());
    assert_eq!(query(&job.place, job.port, &home), (Some(0), String::new()));
    ends(member, Some(0));
}

#[test]
fn a_secret_of_the_user_that_others_could_have_put_there_is_refused() {
    let place = Workplace::new();
    let refused = |home: &str, remedy: &str| {
        let (code, line) = query(&place, free_port(), &place.path(home));
        assert!(code == Some(2) && line.contains(remedy) && line.contains("--insecure"), "{line}");
    };
    std::fs::create_dir_all(place.path("open/kiln")).unwrap();
    std::fs::set_permissions(place.path("open/kiln"), std::fs::Permissions::from_mode(0o777)).unwrap();
    refused("open", "mode 700");
    std::fs::create_dir_all(place.path("led/kiln")).unwrap();
    std::fs::set_permissions(place.path("led/kiln"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(place.path("planted"), Secret::random().to_text()).unwrap();
    symlink(place.path("planted"), place.path("led/kiln/secret")).unwrap();
    refused("led", "symbolic link");
    std::fs::create_dir_all(place.path("read")).unwrap();
    symlink(place.path("led/kiln"), place.path("read/kiln")).unwrap();
    refused("read", "directory that only this user may change");
    std::fs::remove_file(place.path("led/kiln/secret")).unwrap();
    std::fs::copy(place.path("planted"), place.path("led/kiln/secret")).unwrap();
    refused("led", "mode '644'");
}

#[test]
fn a_secret_is_written_once_and_for_its_owner_only() {
    let place = Workplace::new();
    let said = succeeded(&place.bare(&["secret", "secret"]).output().unwrap());
    assert!(said.starts_with("secret      secret"), "{said}");
    let text = std::fs::read_to_string(place.path("secret")).unwrap();
    assert_eq!(std::fs::metadata(place.path("secret")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(Secret::from_file(&place.path("secret")).is_ok() && text.len() == "kiln-\n".len() + 64, "{text}");
    symlink("nowhere", place.path("link")).unwrap();
    for (name, reason) in [("secret", "already exists"), ("link", "already exists"), ("no/secret", "cannot write")] {
        let output = place.bare(&["secret", name]).output().unwrap();
        assert_ne!(output.status.code(), Some(0));
        assert!(errors(&output).concat().contains(reason), "{:?}", errors(&output));
    }
    assert_eq!(std::fs::read_to_string(place.path("secret")).unwrap(), text);
    assert!(place.snapshot().len() == 2, "nothing else is left");
}
