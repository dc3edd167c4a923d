//! Requests of the crate `object_store` through `ureq`, whose connections, proxies and certificates downloads use, too.
//!
//! A body is read whole before the answer is passed on, so that one that is cut off is asked for again like any other
//! failure. Every thread that asks waits for its own request.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use ureq::config::AutoHeaderValue;
use ureq::http::StatusCode;
use ureq::http::header::RANGE;
use ureq::{Agent, Error};

/// Most bytes of an answer.
const LARGEST: u64 = 1 << 30;

/// Connects by `ureq`.
#[derive(Debug)]
pub(super) struct Connector {
    /// How long a connection, an answer, or its next bytes may take.
    pub(super) patience: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let patience = Some(self.patience);
        let config = Agent::config_builder().timeout_connect(patience).timeout_recv_response(patience);
        let config = config.timeout_per_read(patience).http_status_as_error(false);
        // Positions count the bytes of the object.
        let config = config.accept_encoding(AutoHeaderValue::None).max_idle_connections_per_host(64);
        Ok(HttpClient::new(Client(config.max_idle_connections(64).build().into())))
    }
}

#[derive(Debug)]
struct Client(Agent);

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let wants_part = parts.headers.contains_key(RANGE);
        let body = body.collect().await?.to_bytes();
        let sent = if body.is_empty() {
            self.0.run(ureq::http::Request::from_parts(parts, ()))
        } else {
            self.0.run(ureq::http::Request::from_parts(parts, &body[..]))
        };
        let (parts, mut body) = sent.map_err(failure)?.into_parts();
        if wants_part && parts.status == StatusCode::OK {
            // The whole object, which nobody has asked for and which may be large.
            return Ok(HttpResponse::from_parts(parts, Bytes::new().into()));
        }
        let bytes = body.with_config().limit(LARGEST).read_to_vec().map_err(failure)?;
        Ok(HttpResponse::from_parts(parts, Bytes::from(bytes).into()))
    }
}

/// Says whether another attempt may succeed.
fn failure(error: Error) -> HttpError {
    let kind = match &error {
        Error::Timeout(_) => HttpErrorKind::Timeout,
        Error::HostNotFound | Error::ConnectionFailed => HttpErrorKind::Connect,
        Error::Io(_) | Error::Protocol(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
