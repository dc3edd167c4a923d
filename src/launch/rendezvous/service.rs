//! The service: the place where the processes of one job meet, as a thread beside rank 0 or in the launcher.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use super::bulletin::Bulletin;
use super::rpc::Rpc;
use super::state::State;
use super::{Terms, Verdict, admission};
use crate::error::{Error, Result};

/// How long the end of the service waits for members to take their leave.
const FAREWELL: Duration = Duration::from_secs(2);
/// The roster looks at the clock four times a beat, and at least this often.
const LONGEST_TICK: Duration = Duration::from_millis(250);
/// Connections that were accepted and wait for the server to take them.
const ACCEPTED: usize = 16;
/// The largest header list of a call, in bytes; a member's has a few hundred.
const LARGEST_HEADERS: u32 = 8 << 10;

/// A running service. Dropping it ends it: at once when every member has left or heard the verdict, else after 2 s, in
/// which they may. A process that has a member too drops the service last.
pub struct Service {
    address: SocketAddr,
    state: Arc<State>,
    runtime: Option<Runtime>,
    /// Disconnected when the server has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

impl Service {
    /// Starts to serve on `listener`. A usage error if the terms cannot work or a file of `terms.tls` cannot be used.
    pub fn start(listener: TcpListener, terms: Terms) -> Result<Self> {
        terms.check()?;
        let server = server(&terms)?;
        admission::raise_limit();
        let failed = |error: std::io::Error| Error::PeerLost(format!("cannot start the rendezvous: {error}"));
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("rendezvous").enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let within = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        drop(within);
        let state = Arc::new(State::new(terms));
        runtime.spawn(tick(Arc::clone(&state)));
        let (running, ended) = mpsc::channel();
        runtime.spawn(serve(server, listener, Arc::clone(&state), running));
        Ok(Self { address, state, runtime: Some(runtime), ended: Mutex::new(ended) })
    }

    /// How the job has come to its end, if it has: well, or why not. One of fixed membership that ends well ends with
    /// its processes.
    pub fn ending(&self) -> Option<std::result::Result<(), Verdict>> {
        let ending = self.state.ending()?;
        Some(if ending.passing { Err(Verdict(ending.reason)) } else { Ok(()) })
    }

    /// Who is in the job right now, if anybody ever was.
    pub fn bulletin(&self) -> Option<Bulletin> {
        self.state.bulletin()
    }

    /// From now on whoever proves the secret may end it, to hold the rendezvous in its place.
    pub fn may_be_replaced(&self) {
        self.state.replaceable.store(true, Ordering::Relaxed);
    }

    /// Whether it is about to end because somebody else holds the rendezvous from now on.
    pub fn is_replaced(&self) -> bool {
        *self.state.closing.borrow()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.state.closing.send_replace(true);
        // Disconnected is what is waited for; nothing is ever sent.
        let _ = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(FAREWELL);
        self.state.knocks.settle(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn server(terms: &Terms) -> Result<Server> {
    let server = Server::builder()
        .max_concurrent_streams(1)
        .http2_max_header_list_size(LARGEST_HEADERS)
        .http2_max_pending_accept_reset_streams(Some(4));
    let Some(tls) = &terms.tls else { return Ok(server) };
    server.tls_config(tls.server()?).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_else(|| error.to_string());
        Error::usage(format!("cannot use the files of --tls-cert and --tls-key: {source}; give a PEM pair"))
    })
}

async fn tick(state: Arc<State>) {
    let mut clock = tokio::time::interval((state.terms.beat / 4).min(LONGEST_TICK).max(Duration::from_millis(1)));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        state.tick();
    }
}

/// `_running` is dropped at the end, which is how the owner learns of it.
async fn serve(server: Server, listener: tokio::net::TcpListener, state: Arc<State>, _running: mpsc::Sender<()>) {
    let (sender, connections) = tokio::sync::mpsc::channel(ACCEPTED);
    tokio::spawn(admission::keep(listener, state.knocks.clone(), sender));
    let mut closing = state.closing.subscribe();
    let closed = async move {
        let _ = closing.wait_for(|closing| *closing).await;
    };
    let served = server.serve_with_incoming_shutdown(Rpc(state), ReceiverStream::new(connections), closed).await;
    if let Err(error) = served {
        tracing::warn!("the rendezvous ended: {error}");
    }
}
