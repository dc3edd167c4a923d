//! Requests of the crate `object_store` through `ureq`, whose connections, proxies and certificates downloads use, too.
//!
//! A body is read whole before the answer is passed on, so that one that is cut off is asked for again like any other
//! failure, and no further than the request asks for. Every thread that asks waits for its own request.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
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
use ureq::tls::TlsConfig;
use ureq::{Agent, Error};

/// Most bytes of an answer whose request does not say how many it asks for: a list of 1000 objects, or an error.
const ANSWER: u64 = 4 << 20;

/// How many bytes a request asks for, as an extension of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most(pub(super) u64);

/// Connects by `ureq`.
#[derive(Debug)]
pub(super) struct Connector {
    /// How long a connection, an answer, or its next bytes may take.
    pub(super) patience: Duration,
    pub(super) tls: TlsConfig,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let patience = Some(self.patience);
        let config = Agent::config_builder().timeout_connect(patience).timeout_recv_response(patience);
        let config = config.timeout_per_read(patience).tls_config(self.tls.clone()).http_status_as_error(false);
        // Positions count the bytes of the object.
        let config = config.accept_encoding(AutoHeaderValue::None).max_idle_connections_per_host(64);
        let agent = config.max_idle_connections(64).build().into();
        Ok(HttpClient::new(Client { agent, fails: AtomicBool::new(false) }))
    }
}

#[derive(Debug)]
struct Client {
    agent: Agent,
    /// Whether the last request failed, which was told then.
    fails: AtomicBool,
}

impl Client {
    /// Tells why a request fails, unless the one before did. Those that follow may be silent for minutes.
    fn note(&self, host: &str, error: &Error) {
        if !self.fails.swap(true, Ordering::Relaxed) {
            tracing::warn!("'{host}' does not answer ({error}); asking again for up to data.retry_seconds");
        }
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let host = parts.uri.host().unwrap_or_default().to_string();
        let wants_part = parts.headers.contains_key(RANGE);
        let asked = parts.extensions.get().map_or(ANSWER, |Most(bytes)| *bytes);
        let body = body.collect().await?.to_bytes();
        let sent = if body.is_empty() {
            self.agent.run(ureq::http::Request::from_parts(parts, ()))
        } else {
            self.agent.run(ureq::http::Request::from_parts(parts, &body[..]))
        };
        let failed = |error| {
            let kind = kind(&error);
            if kind != HttpErrorKind::Unknown {
                self.note(&host, &error);
            }
            HttpError::new(kind, error)
        };
        let (parts, mut body) = sent.map_err(failed)?.into_parts();
        if wants_part && parts.status == StatusCode::OK {
            // The whole object, which nobody has asked for and which may be large.
            return Ok(HttpResponse::from_parts(parts, Bytes::new().into()));
        }
        let most = if parts.status.is_success() { asked } else { ANSWER };
        // The limit of `ureq` is the first number of bytes that it refuses.
        let bytes = body.with_config().limit(most.saturating_add(1)).read_to_vec().map_err(|error| match error {
            Error::BodyExceedsLimit(_) => {
                let rule = format!("the server sent more than the {most} bytes that were asked for");
                HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(rule))
            }
            other => failed(other),
        })?;
        self.fails.store(false, Ordering::Relaxed);
        Ok(HttpResponse::from_parts(parts, Bytes::from(bytes).into()))
    }
}

/// Says whether another attempt may succeed.
fn kind(error: &Error) -> HttpErrorKind {
    match error {
        // As of a certificate.
        Error::Io(reason) if reason.kind() == ErrorKind::InvalidData => HttpErrorKind::Unknown,
        Error::Timeout(_) => HttpErrorKind::Timeout,
        Error::HostNotFound | Error::ConnectionFailed => HttpErrorKind::Connect,
        Error::Io(_) | Error::Protocol(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    }
}
