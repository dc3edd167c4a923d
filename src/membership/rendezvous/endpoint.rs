//! The address of the service, parsed into an endpoint, and the reasons of a failed connection.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use kiln_system::{Error, Result};
use tonic::transport::{Channel, Endpoint};

use super::wire::ENVELOPE_LIMIT;
use super::{HANDSHAKE, Terms, tls};

/// Why one side does not understand the other.
pub(super) const NO_TLS: &str =
    "it does not speak TLS: it is another program, a job without a secret (--insecure), or an earlier version";

/// The endpoint at `address` (`host:port`, with brackets around an IPv6 host).
pub(super) fn endpoint(address: &str, terms: &Terms) -> Result<Endpoint> {
    let refuse = || Error::usage(format!("'{address}' is not a rendezvous address; give --dist-url tcp://HOST:PORT"));
    let (host, port) = address.rsplit_once(':').ok_or_else(refuse)?;
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(refuse());
    }
    let scheme = if terms.secret.is_none() { "http" } else { "https" };
    let endpoint = Channel::from_shared(format!("{scheme}://{address}")).map_err(|_| refuse())?;
    let window = 2 * ENVELOPE_LIMIT as u32;
    let endpoint = endpoint
        .connect_timeout(HANDSHAKE)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(30)))
        .initial_stream_window_size(window)
        .initial_connection_window_size(window);
    if terms.secret.is_none() {
        return Ok(endpoint);
    }
    endpoint.tls_config(tls::client(&terms.secret)).map_err(|error| Error::usage(cause(&error)))
}

/// The innermost reason of a failed connection. It contains no text of the other side, other than for [`distrust`].
pub(super) fn cause(error: &tonic::transport::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn failure(error: &tonic::transport::Error, kind: io::ErrorKind) -> Option<&io::Error> {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).find(|it| it.kind() == kind)
}

pub(super) fn is_refused(error: &tonic::transport::Error) -> bool {
    failure(error, io::ErrorKind::ConnectionRefused).is_some()
}

/// Why the other side has proven nothing, if the connection failed for that.
pub(super) fn distrust(error: &tonic::transport::Error) -> Option<&'static str> {
    let text = failure(error, io::ErrorKind::InvalidData)?.to_string();
    Some(match text {
        text if text.contains("InvalidContentType") => NO_TLS,
        text if text.contains("invalid peer certificate") => "its secret is different",
        _ => "its TLS is different, or was altered on the way",
    })
}
