//! Admission: how many strangers the service listens to, and for how long.
//!
//! A connection is a stranger's until its process has proven the secret, and has [`HANDSHAKE`] for that, whatever it
//! sends or does not send. Strangers have [`PLACES`] in all and [`PLACES_OF_ADDRESS`] of one address; when those are
//! taken, a newcomer takes the place of the oldest one that has had a [`FAIR_TIME`], so that whoever needs a place for
//! a handshake only gets one soon, though others hold theirs or come again and again. Members need none of these places:
//! how many there may be is for the policy. A connection ends with the seat of its member.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tonic::transport::server::Connected;

use super::HANDSHAKE;
use super::knocks::Knocks;

/// Places for strangers.
const PLACES: usize = 512;
/// Of these, for the strangers of one address.
const PLACES_OF_ADDRESS: usize = 256;
/// So long a stranger keeps its place in any case; a handshake takes a few round trips.
const FAIR_TIME: Duration = Duration::from_millis(250);
/// When the system has no file descriptor left, the next attempt waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a connection is to the service.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Standing {
    Stranger,
    /// A stranger that had to make room.
    Displaced,
    Member,
    /// A member that has no seat any more.
    Dismissed,
}

/// What a session knows of its connection.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub peer: SocketAddr,
    standing: Arc<watch::Sender<Standing>>,
}

impl Pass {
    fn new(peer: SocketAddr) -> Self {
        Self { peer, standing: Arc::new(watch::Sender::new(Standing::Stranger)) }
    }

    /// From now on the connection may stay as long as it likes.
    pub fn admit(&self) {
        self.advance(Standing::Stranger, Standing::Member);
    }

    /// Ends the connection.
    pub fn dismiss(&self) {
        self.advance(Standing::Member, Standing::Dismissed);
    }

    fn advance(&self, from: Standing, to: Standing) {
        self.standing.send_if_modified(|standing| {
            let is_apt = *standing == from;
            *standing = if is_apt { to } else { *standing };
            is_apt
        });
    }

    /// Whether a connection that is not a member's is still there.
    fn holds_place(&self) -> bool {
        self.standing.receiver_count() > 0 && *self.standing.borrow() == Standing::Stranger
    }
}

/// Waits for the end that the service sets to a connection; answers with why it turned a stranger away.
async fn end(mut standing: watch::Receiver<Standing>) -> Option<&'static str> {
    let stranger = standing.wait_for(|it| *it != Standing::Stranger);
    match tokio::time::timeout(HANDSHAKE, stranger).await.map(|waited| waited.map(|it| *it)) {
        Err(_) => return Some("no handshake in time"),
        Ok(Ok(Standing::Displaced)) => return Some("there were too many connections"),
        Ok(_) => {}
    }
    let _ = standing.wait_for(|it| *it == Standing::Dismissed).await;
    None
}

/// A connection that ends when the service wants it to.
pub(super) struct Connection {
    stream: TcpStream,
    pass: Pass,
    /// Absent once it is over.
    end: Option<Pin<Box<dyn Future<Output = Option<&'static str>> + Send>>>,
    knocks: Arc<Knocks>,
}

impl Connection {
    fn new(stream: TcpStream, pass: Pass, knocks: Arc<Knocks>) -> Self {
        // Small messages travel at once; a socket that refuses works all the same.
        let _ = stream.set_nodelay(true);
        let end = Box::pin(end(pass.standing.subscribe()));
        Self { stream, pass, end: Some(end), knocks }
    }

    /// Fails once the connection is to end; until then the task is woken when it will be.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(end) = &mut self.end {
            let Poll::Ready(why) = end.as_mut().poll(context) else { return Ok(()) };
            self.end = None;
            why.into_iter().for_each(|why| self.knocks.note(self.pass.peer.ip(), why));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the rendezvous ended the connection"))
    }
}

impl Connected for Connection {
    type ConnectInfo = Pass;

    fn connect_info(&self) -> Pass {
        self.pass.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The connections of strangers, in the order of their arrival.
#[derive(Default)]
struct Strangers(Vec<(Instant, Pass)>);

impl Strangers {
    /// A pass for one more, if there is a place.
    fn receive(&mut self, peer: SocketAddr, now: Instant) -> Option<Pass> {
        self.0.retain(|(_, pass)| pass.holds_place());
        let is_near = |pass: &Pass| pass.peer.ip() == peer.ip();
        let near = self.0.iter().filter(|(_, pass)| is_near(pass)).count();
        if near >= PLACES_OF_ADDRESS || self.0.len() >= PLACES {
            let may_go = |pass: &Pass| near < PLACES_OF_ADDRESS || is_near(pass);
            let oldest = self.0.iter().position(|(_, pass)| may_go(pass))?;
            if now.saturating_duration_since(self.0[oldest].0) < FAIR_TIME {
                return None;
            }
            self.0.remove(oldest).1.advance(Standing::Stranger, Standing::Displaced);
        }
        let pass = Pass::new(peer);
        self.0.push((now, pass.clone()));
        Some(pass)
    }
}

/// Takes connections in until nobody serves them any more. Those without a place are closed at once.
pub(super) async fn keep(
    listener: TcpListener,
    knocks: Arc<Knocks>,
    connections: mpsc::Sender<io::Result<Connection>>,
) {
    let mut strangers = Strangers::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = connections.closed() => return,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        match strangers.receive(peer, Instant::now()) {
            // Fails only when the service ends, which the next turn notices.
            Some(pass) => drop(connections.send(Ok(Connection::new(stream, pass, knocks.clone()))).await),
            None => knocks.note(peer.ip(), "there were too many connections"),
        }
    }
}

/// Lets this process open as many files as the system lets it: every member is one, and so is every stranger.
pub(super) fn raise_limit() {
    // SAFETY: both calls only read and write the structure.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}
