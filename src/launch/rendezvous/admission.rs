//! Admission: how many connections the service keeps, and for how long it listens to strangers.
//!
//! A connection has [`HANDSHAKE`] to become a member's, whatever it sends or does not send; until then it costs one
//! place of a fixed number. So idle, slow and babbling connections can delay a newcomer by that time at most, and
//! members not at all. Who becomes a member is left to the session.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use super::HANDSHAKE;

/// Places beside those of the members.
const SPARE_PLACES: usize = 64;
/// When the system has no file descriptor left, the next attempt waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a session knows of its connection.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub peer: SocketAddr,
    admitted: Arc<AtomicBool>,
}

impl Pass {
    /// From now on the connection may stay as long as it likes.
    pub fn admit(&self) {
        self.admitted.store(true, Ordering::Release);
    }

    fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Acquire)
    }
}

/// A connection that ends by itself unless it is admitted in time.
pub(super) struct Connection {
    stream: TcpStream,
    pass: Pass,
    patience: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit) -> Self {
        // Small messages travel at once; a socket that refuses works all the same.
        let _ = stream.set_nodelay(true);
        let pass = Pass { peer, admitted: Arc::default() };
        Self { stream, pass, patience: Box::pin(tokio::time::sleep(HANDSHAKE)), _place: place }
    }

    /// Fails once the time is over; until then the task is woken when it will be.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.pass.is_admitted() || self.patience.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "no handshake in time"))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.pass.is_admitted() && self.patience.is_elapsed() {
            let peer = self.pass.peer;
            tracing::warn!("closed a connection from {peer} to the rendezvous: no handshake in {HANDSHAKE:?}");
        }
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

/// Takes connections in until nobody serves them any more. Beyond the places for `members` and some strangers, they
/// are closed at once.
pub(super) async fn keep(listener: TcpListener, members: usize, connections: mpsc::Sender<io::Result<Connection>>) {
    let places = Arc::new(Semaphore::new(members + SPARE_PLACES));
    let mut crowded = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = connections.closed() => return,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let place = Arc::clone(&places).try_acquire_owned();
        // A flood is worth one line, not one for each of its connections.
        if place.is_err() && !crowded {
            tracing::warn!("closed a connection from {peer} to the rendezvous, and maybe more: there are too many");
        }
        crowded = place.is_err();
        if let Ok(place) = place {
            // Fails only when the service ends, which the next turn notices.
            let _ = connections.send(Ok(Connection::new(stream, peer, place))).await;
        }
    }
}
