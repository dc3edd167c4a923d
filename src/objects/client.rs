//! A client of an object store: HTTP servers that answer range requests, and stores that speak S3.
//!
//! Requests that fail are repeated with growing pauses. Credentials and the endpoint of S3 come from the environment
//! only (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, ...); a URL that holds some is refused,
//! since it would be written into the run's files.

use std::future::Future;
use std::io::{Error as Failure, Result as Outcome};
use std::time::Duration;

use bytes::Bytes;
use kiln_system::{Error, Result};
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{Error as Refusal, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, RetryConfig};
use ureq::http::Extensions;

use super::connector::{Connector, Most};
use crate::fetch::{AUTHORITIES, tls};

/// Objects below a prefix.
#[derive(Debug)]
pub struct Client {
    pub url: String,
    pub store: Box<dyn ObjectStore>,
    prefix: Key,
}

impl Client {
    /// Those below `root`, as in `https://host/path` or `s3://bucket/path`, which the option `flag` names.
    ///
    /// # Errors
    /// If the URL is not of that form or holds credentials, or the environment does not say how to reach the store.
    pub fn open(root: &str, flag: &str, retry_seconds: f64) -> Result<Self> {
        Self::check(root, flag)?;
        let url = format!("{}/", root.trim_end_matches('/'));
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let retry_timeout = Duration::from_secs_f64(retry_seconds);
        let retry = RetryConfig { retry_timeout, max_retries: usize::MAX, ..RetryConfig::default() };
        let patience = (retry_timeout / 6).max(Duration::from_secs(1));
        let connector = Connector { patience, tls: tls()? };
        let refused = |reason: Refusal| Error::usage(format!("cannot use '{url}': {}", one_line(&reason)));
        let (bucket, path) = rest.split_once('/').unwrap_or_default();
        let (store, prefix): (Box<dyn ObjectStore>, &str) = match scheme {
            "http" | "https" => {
                let builder = HttpBuilder::new().with_url(&url).with_retry(retry).with_http_connector(connector);
                (Box::new(builder.build().map_err(refused)?), "")
            }
            "s3" | "s3a" => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
                (Box::new(builder.with_http_connector(connector).build().map_err(refused)?), path)
            }
            _ => {
                let known = "http://, https://, s3:// and file://";
                return Err(Error::usage(format!("'{url}' has the unknown scheme '{scheme}'; {flag} takes {known}")));
            }
        };
        let prefix = Key::parse(prefix.trim_end_matches('/'));
        let prefix = prefix.map_err(|reason| Error::usage(format!("'{url}' is not a URL of objects: {reason}")))?;
        Ok(Self { url, store, prefix })
    }

    /// Refuses a URL with credentials.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(url: &str, flag: &str) -> Result<()> {
        if !url.contains(['@', '?', '#']) {
            return Ok(());
        }
        // Not repeated here: it may hold a secret.
        Err(Error::usage(format!(
            "the URL in {flag} has '@', '?' or '#', as URLs with credentials do; give them by the environment \
             (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and the URL alone"
        )))
    }

    pub fn key(&self, name: &str) -> Key {
        self.prefix.clone().parts().chain(Key::from(name).parts()).collect()
    }

    /// An object, or a part of it, of at most `most` bytes.
    pub async fn get(&self, name: &str, range: Option<GetRange>, most: u64) -> object_store::Result<GetResult> {
        let mut extensions = Extensions::new();
        extensions.insert(Most(most));
        let options = GetOptions { range, extensions, ..GetOptions::default() };
        self.store.get_opts(&self.key(name), options).await
    }

    /// The whole object, of at most `most` bytes; `None` if there is none.
    pub(super) fn whole(&self, name: &str, most: u64) -> Outcome<Option<Vec<u8>>> {
        match wait(async { self.get(name, None, most).await?.bytes().await }) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(Refusal::NotFound { .. }) => Ok(None),
            Err(reason) => Err(Failure::other(failure(&reason, RETRY))),
        }
    }

    pub(super) fn put(&self, name: &str, content: impl AsRef<[u8]> + Send + 'static) -> Outcome<()> {
        let written = wait(self.store.put(&self.key(name), Bytes::from_owner(content).into()));
        written.map(drop).map_err(|reason| Failure::other(failure(&reason, RETRY)))
    }

    pub(super) fn delete(&self, name: &str) -> Outcome<()> {
        wait(self.store.delete(&self.key(name))).map_err(|reason| Failure::other(failure(&reason, RETRY)))
    }
}

const RETRY: &str = "try for longer with data.retry_seconds";

pub fn wait<T>(request: impl Future<Output = object_store::Result<T>>) -> object_store::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|reason| Refusal::Generic { store: "runtime", source: reason.into() })?;
    runtime.block_on(request)
}

/// Why a request failed, and what to do.
pub fn failure(reason: &Refusal, remedy: &str) -> String {
    let why = one_line(reason);
    let private = format!("if it is from an authority of your own, name that one's file in {AUTHORITIES}");
    let remedy = match reason {
        _ if why.contains("peer certificate") => &private,
        Refusal::PermissionDenied { .. } | Refusal::Unauthenticated { .. } => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for public objects"
        }
        _ => remedy,
    };
    format!("{why}; {remedy}")
}

/// The innermost reason, in one line: the outer ones repeat the address. The answer of a server, which may name
/// credentials, is left out.
fn one_line(reason: &dyn std::error::Error) -> String {
    let mut inner = reason;
    while let Some(source) = inner.source() {
        inner = source;
    }
    let text = inner.to_string();
    let text = text.split('<').next().unwrap_or_default();
    text.split_whitespace().take(40).collect::<Vec<_>>().join(" ").trim_end_matches(':').to_string()
}
