//! The service of the rendezvous, on a thread of rank 0 or of the launcher, or as a program of its own.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kiln_system::{Error, Result};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tower::service_fn;

use super::connection::Dialer;
use super::membership::MembershipView;
use super::query::ask;
use super::service_state::ServiceState;
use super::wire::FromService;
use super::{Terms, Verdict, admission, rpc, tls};

/// How long the end of the service waits for members to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The roster gets a tick four times a beat, and at least this often.
const LONGEST_TICK: Duration = Duration::from_millis(250);
/// How many accepted connections may wait for the server.
const ACCEPTED: usize = 16;
/// The largest header list of a call, in bytes; a member sends a few hundred.
const LARGEST_HEADERS: u32 = 8 << 10;

/// A running service. Dropping it ends it: at once if every member has left or got the verdict, else after 2 s. A
/// process that is also a member must drop the service last.
pub struct Service {
    address: SocketAddr,
    state: Arc<ServiceState>,
    runtime: Option<Runtime>,
    ended: Mutex<mpsc::Receiver<()>>,
}

impl Service {
    /// Starts to serve on `listener`. A usage error if the terms cannot work.
    pub fn start(listener: TcpListener, terms: Terms) -> Result<Self> {
        terms.check()?;
        let server = server(&terms)?;
        admission::raise_limit()?;
        let failed = |error: std::io::Error| Error::PeerLost(format!("cannot start the rendezvous: {error}"));
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("rendezvous").enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let within = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        let voters = terms.addresses.iter().map(|address| Dialer::new(address, &terms)).collect::<Result<Vec<_>>>()?;
        drop(within);
        let state = Arc::new(ServiceState::new(terms));
        runtime.spawn(tick(Arc::clone(&state), voters.into()));
        let (running, ended) = mpsc::channel();
        runtime.spawn(serve(server, listener, Arc::clone(&state), running));
        Ok(Self { address, state, runtime: Some(runtime), ended: Mutex::new(ended) })
    }

    /// The result of the job, if it is over. A job of fixed membership that succeeds has none.
    pub fn ending(&self) -> Option<std::result::Result<(), Verdict>> {
        let ending = self.state.ending()?;
        Some(if ending.transient { Err(Verdict(ending.reason)) } else { Ok(()) })
    }

    /// The current view; `None` if no process has joined yet.
    pub fn view(&self) -> Option<MembershipView> {
        self.state.view()
    }

    /// From now on a process that proves the secret may take over the rendezvous.
    pub fn may_be_replaced(&self) {
        self.state.replaceable.store(true, Ordering::Relaxed);
    }

    pub fn is_replaced(&self) -> bool {
        *self.state.closing.borrow()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.state.closing.send_replace(true);
        // Nothing is ever sent; this waits for the disconnection.
        let _ = self.ended.get_mut().recv_timeout(LEAVE_TIMEOUT);
        self.state.rejections.log_due(true);
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
    if terms.secret.is_none() {
        return Ok(server);
    }
    server.tls_config(tls::server(&terms.secret)).map_err(|error| Error::usage(error.to_string()))
}

async fn tick(state: Arc<ServiceState>, voters: Arc<[Dialer]>) {
    let mut clock = tokio::time::interval((state.terms.beat / 4).min(LONGEST_TICK).max(Duration::from_millis(1)));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        state.tick();
        claim(&state, &voters);
    }
}

/// Claims the voters that are due, and those that are due with each answer.
fn claim(state: &Arc<ServiceState>, voters: &Arc<[Dialer]>) {
    for (voter, claims, sent) in state.claims() {
        let (state, voters) = (Arc::clone(state), Arc::clone(voters));
        tokio::spawn(async move {
            let vote = match ask(&voters[voter], &claims).await {
                Ok(FromService::Vote(vote)) => Some(vote),
                _ => None,
            };
            state.voted(voter, sent, vote);
            claim(&state, &voters);
        });
    }
}

/// Dropping `_running` tells the owner of the service that it has ended.
async fn serve(
    server: Server,
    listener: tokio::net::TcpListener,
    state: Arc<ServiceState>,
    _running: mpsc::Sender<()>,
) {
    let (sender, connections) = tokio::sync::mpsc::channel(ACCEPTED);
    let is_encrypted = !state.terms.secret.is_none();
    tokio::spawn(admission::keep(listener, state.rejections.clone(), is_encrypted, sender));
    let mut closing = state.closing.subscribe();
    let closed = async move {
        let _ = closing.wait_for(|closing| *closing).await;
    };
    let answer = service_fn(move |call| rpc::answer(Arc::clone(&state), call));
    let served = server.serve_with_incoming_shutdown(answer, ReceiverStream::new(connections), closed).await;
    if let Err(error) = served {
        tracing::warn!("the rendezvous ended: {error}");
    }
}
