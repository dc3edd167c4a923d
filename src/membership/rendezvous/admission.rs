//! Admission: limits the number and the time of connections that do not belong to members.
//!
//! A connection is unproven until its process was admitted, and has [`HANDSHAKE`] to prove itself.
//! There are at most [`MOST_UNPROVEN`] of these, and [`MOST_OF_ADDRESS`] of one address; beyond, a new connection
//! replaces the oldest one that has had its [`GUARANTEED_TIME`], so that a process that only needs a handshake is
//! served soon even if others hold connections or reconnect again and again. Connections of members do not count; the
//! roster limits their number. A connection ends when its member is removed.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use kiln_system::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tonic::transport::server::Connected;

use super::HANDSHAKE;
use super::endpoint::NO_TLS;
use super::rejections::RejectionLog;

const MOST_UNPROVEN: usize = 512;
const MOST_OF_ADDRESS: usize = 256;
/// How long an unproven connection is not replaced; a handshake takes a few round trips.
const GUARANTEED_TIME: Duration = Duration::from_millis(250);
/// The fewest open files with which a process can join or hold a job.
const FEWEST_FILES: libc::rlim_t = 64;
/// How TLS begins (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// The pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq)]
enum ConnectionState {
    Unproven,
    /// Its process knows the secret, and may still be refused.
    Proven,
    Displaced,
    Member,
    Dismissed,
}

/// A session's access to its connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionHandle {
    pub peer: SocketAddr,
    state: Arc<watch::Sender<ConnectionState>>,
}

impl ConnectionHandle {
    fn new(peer: SocketAddr) -> Self {
        Self { peer, state: Arc::new(watch::Sender::new(ConnectionState::Unproven)) }
    }

    /// Marks the connection as proven: its process knows the secret.
    pub(crate) fn prove(&self) {
        self.advance(ConnectionState::Unproven, ConnectionState::Proven);
    }

    /// Marks the connection as a member's, without a time limit.
    pub(crate) fn admit(&self) {
        self.advance(ConnectionState::Proven, ConnectionState::Member);
    }

    pub(crate) fn dismiss(&self) {
        self.advance(ConnectionState::Member, ConnectionState::Dismissed);
    }

    fn advance(&self, from: ConnectionState, to: ConnectionState) {
        self.state.send_if_modified(|state| {
            let applies = *state == from;
            *state = if applies { to } else { *state };
            applies
        });
    }

    fn is_unproven(&self) -> bool {
        self.state.receiver_count() > 0 && *self.state.borrow() == ConnectionState::Unproven
    }
}

/// Waits until the service ends the connection; returns why, if it is unproven.
async fn end(mut state: watch::Receiver<ConnectionState>) -> Option<&'static str> {
    let changed = state.wait_for(|it| !matches!(it, ConnectionState::Unproven | ConnectionState::Proven));
    match tokio::time::timeout(HANDSHAKE, changed).await.map(|waited| waited.map(|it| *it)) {
        Err(_) => return Some("it was too slow"),
        Ok(Ok(ConnectionState::Displaced)) => return Some("there were too many connections"),
        Ok(_) => {}
    }
    let _ = state.wait_for(|it| *it == ConnectionState::Dismissed).await;
    None
}

pub(super) struct Connection {
    stream: TcpStream,
    handle: ConnectionHandle,
    /// `None` once the service has ended it.
    end: Option<Pin<Box<dyn Future<Output = Option<&'static str>> + Send>>>,
    rejections: Arc<RejectionLog>,
    /// The first byte that its process sent.
    first: Option<u8>,
    /// Whether the job has a secret.
    is_encrypted: bool,
}

impl Connection {
    fn new(stream: TcpStream, handle: ConnectionHandle, rejections: Arc<RejectionLog>, is_encrypted: bool) -> Self {
        // Sends small messages at once; without this option the socket is only slower.
        let _ = stream.set_nodelay(true);
        let end = Box::pin(end(handle.state.subscribe()));
        Self { stream, handle, end: Some(end), rejections, first: None, is_encrypted }
    }

    /// Fails once the service has ended the connection, and wakes the task when it does.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(end) = &mut self.end {
            let Poll::Ready(why) = end.as_mut().poll(context) else { return Ok(()) };
            self.end = None;
            why.into_iter().for_each(|why| self.rejections.note(self.handle.peer.ip(), why));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the rendezvous ended the connection"))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let why = match self.first {
            Some(HANDSHAKE_RECORD) => "it did not prove that it knows the job's secret",
            Some(_) => NO_TLS,
            // As from a probe that only checks whether the port is open.
            None => return,
        };
        let is_unproven = *self.handle.state.borrow() == ConnectionState::Unproven;
        if self.is_encrypted && self.end.is_some() && is_unproven {
            self.rejections.note(self.handle.peer.ip(), why);
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> ConnectionHandle {
        self.handle.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.first = self.first.or_else(|| buffer.filled().get(before).copied());
        read
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

/// The unproven connections, in order of arrival.
#[derive(Default)]
struct UnprovenConnections(Vec<(Instant, ConnectionHandle)>);

impl UnprovenConnections {
    fn register(&mut self, peer: SocketAddr, now: Instant) -> Option<ConnectionHandle> {
        self.0.retain(|(_, handle)| handle.is_unproven());
        let is_same_address = |handle: &ConnectionHandle| handle.peer.ip() == peer.ip();
        let of_address = self.0.iter().filter(|(_, handle)| is_same_address(handle)).count();
        if of_address >= MOST_OF_ADDRESS || self.0.len() >= MOST_UNPROVEN {
            let may_go = |handle: &ConnectionHandle| of_address < MOST_OF_ADDRESS || is_same_address(handle);
            let oldest = self.0.iter().position(|(_, handle)| may_go(handle))?;
            if now.saturating_duration_since(self.0[oldest].0) < GUARANTEED_TIME {
                return None;
            }
            self.0.remove(oldest).1.advance(ConnectionState::Unproven, ConnectionState::Displaced);
        }
        let handle = ConnectionHandle::new(peer);
        self.0.push((now, handle.clone()));
        Some(handle)
    }
}

/// Accepts connections until the service ends; those without room are closed at once.
pub(super) async fn keep(
    listener: TcpListener,
    rejections: Arc<RejectionLog>,
    is_encrypted: bool,
    connections: mpsc::Sender<io::Result<Connection>>,
) {
    let mut unproven = UnprovenConnections::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = connections.closed() => return,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        match unproven.register(peer, Instant::now()) {
            // Fails only when the service ends, which the loop checks next.
            Some(handle) => {
                let connection = Connection::new(stream, handle, rejections.clone(), is_encrypted);
                drop(connections.send(Ok(connection)).await);
            }
            None => rejections.note(peer.ip(), "there were too many connections"),
        }
    }
}

/// Raises the limit of open files to the system's maximum, since every connection needs one. A usage error if that is
/// too few for the files and connections of a process.
pub(super) fn raise_limit() -> Result<()> {
    // SAFETY: both calls only read and write the structure.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        if limit.rlim_cur < FEWEST_FILES {
            return Err(Error::usage(format!(
                "a run of several processes needs at least {FEWEST_FILES} open files per process, but the system \
                 allows '{}'; raise that with 'ulimit -n 1024'",
                limit.rlim_cur
            )));
        }
    }
    Ok(())
}
