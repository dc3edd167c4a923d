//! What a request gets: the page, its events, an action, or a refusal of one line.
//!
//! An address in reach of other machines needs a token. On this machine the page may be read without one. The buttons
//! need it everywhere, since other users are on this machine, too.

use std::net::IpAddr;

use httparse::{EMPTY_HEADER, Request, Status};
use kiln_system::Error;
use subtle::ConstantTimeEq;

/// Most bytes of a request; it needs no more than its head.
pub(super) const MOST: usize = 8192;
/// Most headers.
const HEADERS: usize = 64;
/// The variable with a token, and its shortest length; shorter ones could be guessed.
const TOKEN: (&str, usize) = ("KILN_SERVE_TOKEN", 16);

/// What a button does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Finish the step, save and end.
    Stop,
    /// Save after the next step and go on.
    Save,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Page,
    Events,
    Act(Action),
}

/// A status and a sentence.
type Answer = (&'static str, &'static str);

pub(super) const ACCEPTED: Answer = ("202 Accepted", "after this step");
pub(super) const LATE: Answer = ("408 Request Timeout", "the request did not arrive in time");
pub(super) const BUSY: Answer = ("503 Service Unavailable", "too many viewers; try again later");
pub(super) const UNKNOWN: Answer = ("404 Not Found", "there is only the page, at /");
const GARBAGE: Answer = ("400 Bad Request", "this is no HTTP/1.1 request");
const LARGE: Answer = ("431 Request Header Fields Too Large", "the request is too large");
const METHOD: Answer = ("405 Method Not Allowed", "the page is read by GET, its buttons use POST");
const FOREIGN: Answer = ("403 Forbidden", "open the address that train has printed; it ends in a token");

/// Who may read the page and press its buttons.
pub(super) struct Access {
    pub(super) token: String,
    /// Whether the page may be read without the token.
    pub(super) is_open: bool,
}

impl Access {
    /// With the token of the environment, or 128 bits of the system's randomness.
    ///
    /// # Errors
    /// A usage error for a token that is short, or has letters that an address cannot hold.
    pub(super) fn new(ip: IpAddr) -> kiln_system::Result<Self> {
        let (name, least) = TOKEN;
        let token = std::env::var(name).unwrap_or_else(|_| random());
        let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
        if token.len() < least || !is_plain {
            let rule = format!("{name} must have at least {least} letters, digits, '-', '.', '_' or '~'");
            return Err(Error::usage(format!("{rule}; unset it, and a token is drawn")));
        }
        Ok(Self { token, is_open: ip.is_loopback() })
    }

    /// Whether a request has the token, as `token=...` among its queries.
    fn is_known(&self, query: &str) -> bool {
        let given = query.split('&').find_map(|pair| pair.strip_prefix("token="));
        given.is_some_and(|given| given.as_bytes().ct_eq(self.token.as_bytes()).into())
    }

    /// Whether a request without the token may read the page. A site whose name was made to lead to this machine (DNS
    /// rebinding) still calls it by that name.
    fn is_open_to(&self, host: &str) -> bool {
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
        let is_this = |name: &str| name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        self.is_open && (name.eq_ignore_ascii_case("localhost") || is_this(name.trim_matches(['[', ']'])))
    }
}

fn random() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has randomness for every process");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the beginning of a request; `None` if there must be more of it.
pub(super) fn read(bytes: &[u8], access: &Access) -> Option<Result<Asked, Answer>> {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(_)) => Some(decide(&request, access)),
        Ok(Status::Partial) if bytes.len() < MOST => None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => Some(Err(LARGE)),
        Err(_) => Some(Err(GARBAGE)),
    }
}

fn decide(request: &Request<'_, '_>, access: &Access) -> Result<Asked, Answer> {
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let header = |name: &str| {
        let header = request.headers.iter().find(|it| it.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let (host, is_known) = (header("Host").unwrap_or_default(), access.is_known(query));
    // A browser names the site of the page whose script asks.
    let is_own = header("Origin").is_none_or(|origin| origin.split_once("://").is_some_and(|(_, site)| site == host));
    match (request.method.unwrap_or_default(), path) {
        _ if !is_known && !access.is_open_to(host) => Err(FOREIGN),
        ("GET", "/") => Ok(Asked::Page),
        ("GET", "/events") => Ok(Asked::Events),
        ("POST", "/stop" | "/save") if !is_known || !is_own => Err(FOREIGN),
        ("POST", "/stop") => Ok(Asked::Act(Action::Stop)),
        ("POST", "/save") => Ok(Asked::Act(Action::Save)),
        (_, "/" | "/events" | "/stop" | "/save") => Err(METHOD),
        _ => Err(UNKNOWN),
    }
}

/// A whole answer of one line.
pub(super) fn whole((status, words): Answer) -> Vec<u8> {
    format!("{}{words}\n", head(status, "text/plain", Some(words.len() + 1))).into_bytes()
}

/// The head of an answer of so many bytes, or of one without end.
pub(super) fn head(status: &str, kind: &str, length: Option<usize>) -> String {
    let length = length.map(|length| format!("Content-Length: {length}\r\n")).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: frame-ancestors 'none'\r\n{length}\r\n"
    )
}
