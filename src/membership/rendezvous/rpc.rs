//! The one gRPC method of the rendezvous, `/kiln.Rendezvous/Session`: a stream of envelopes in both directions.
//!
//! For a single method with hand-written messages this is all the code that a generator would write.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http::{self, uri::PathAndQuery};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::admission::ConnectionHandle;
use super::service_state::ServiceState;
use super::session;
use super::wire::{ENVELOPE_LIMIT, Envelope};

const PATH: &str = "/kiln.Rendezvous/Session";
/// The capacity of a queue of outgoing envelopes.
pub(super) const QUEUE: usize = 16;

/// Opens a session over `channel`, on which the member sends `outgoing`.
pub(super) async fn open(channel: Channel, outgoing: mpsc::Receiver<Envelope>) -> Result<Streaming<Envelope>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(ENVELOPE_LIMIT);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let codec = ProstCodec::<Envelope, Envelope>::default();
    let request = Request::new(ReceiverStream::new(outgoing));
    Ok(grpc.streaming(request, PathAndQuery::from_static(PATH), codec).await?.into_inner())
}

/// The service's side: every call of the method is a session.
pub(super) async fn answer(
    state: Arc<ServiceState>,
    call: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    if call.uri().path() != PATH {
        return Ok(Status::unimplemented("only the sessions of train are served here").into_http());
    }
    let open_session = service_fn(|request: Request<Streaming<Envelope>>| {
        let state = Arc::clone(&state);
        async move {
            let handle = request.extensions().get::<ConnectionHandle>().cloned();
            let handle = handle.ok_or_else(|| Status::internal("a session without a connection"))?;
            let (sender, receiver) = mpsc::channel(QUEUE);
            tokio::spawn(session::serve(state, handle, request.into_inner(), sender));
            Ok(Response::new(ReceiverStream::new(receiver)))
        }
    });
    let codec = ProstCodec::<Envelope, Envelope>::default();
    let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(ENVELOPE_LIMIT);
    Ok(grpc.streaming(open_session, call).await)
}
