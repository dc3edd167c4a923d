//! Shards in an object store: HTTP servers that answer range requests, and stores that speak S3.
//!
//! Requests that fail are repeated with growing pauses for `data.retry_seconds`. Credentials and the endpoint of S3 come from
//! the environment only (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, ...); a URL that holds some is
//! refused, since it would be written into the run's files. An object that changes during a run ends it.

mod cache;
mod connector;
mod feed;
mod future;
mod stock;
mod window;

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io::{Error as Failure, ErrorKind, Result as Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{Error as Refusal, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig};
use sha2::{Digest, Sha256};

use self::connector::Connector;
pub(super) use self::feed::Feed;
use self::window::Window;
use super::config::DataConfig;
use super::index::Stamp;
use super::store::{ReadAt, Store, cached_index};
use crate::error::{Error, Result};

/// Requests at the same time.
const REQUESTS: usize = 32;

/// Objects below a prefix.
#[derive(Debug)]
pub(super) struct Remote {
    /// With a slash at its end.
    url: String,
    store: Box<dyn ObjectStore>,
    prefix: Key,
    /// The length and the ETag of the objects seen so far.
    seen: Mutex<HashMap<String, (u64, Option<String>)>>,
    /// Itself, for the readers of its objects.
    own: std::sync::Weak<Self>,
}

impl Remote {
    /// Those below `root`, as in `https://host/path` or `s3://bucket/path`.
    ///
    /// # Errors
    /// If the URL is not of that form or holds credentials, or the environment does not say how to reach the store.
    pub(super) fn open(root: &Path, config: &DataConfig) -> Result<Arc<Self>> {
        let url = format!("{}/", root.to_string_lossy().trim_end_matches('/'));
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if config.dir.to_string_lossy().contains(['@', '?', '#']) {
            // Not repeated here: it may hold a secret.
            return Err(Error::usage(
                "the URL in --data-dir has '@', '?' or '#', as URLs with credentials do; give them by the environment \
                 (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and the URL of the shards alone",
            ));
        }
        let retry_timeout = Duration::from_secs_f64(config.retry_seconds);
        let retry = RetryConfig { retry_timeout, max_retries: usize::MAX, ..RetryConfig::default() };
        let connector = Connector { patience: (retry_timeout / 6).max(Duration::from_secs(1)) };
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
                return Err(Error::usage(format!(
                    "'{url}' has the unknown scheme '{scheme}'; --data-dir takes {known}"
                )));
            }
        };
        let prefix = Key::parse(prefix.trim_end_matches('/'));
        let prefix = prefix.map_err(|reason| Error::usage(format!("'{url}' is not a URL of shards: {reason}")))?;
        Ok(Arc::new_cyclic(|own| Self { url, store, prefix, seen: Mutex::default(), own: own.clone() }))
    }

    fn key(&self, name: &str) -> Key {
        self.prefix.clone().parts().chain(Key::from(name).parts()).collect()
    }

    /// The bytes `range` of an object, of which there are some.
    fn get(&self, name: &str, range: Range<u64>) -> Read<Bytes> {
        let at = range.start;
        let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
        let key = self.key(name);
        let answer = wait(async {
            let answer = self.store.get_opts(&key, options).await?;
            Ok((answer.meta.clone(), answer.bytes().await?))
        });
        let (meta, bytes) = answer.map_err(|reason| failure(&reason, at))?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if seen.is_some_and(|(length, tag)| (length, &tag) != (meta.size, &meta.e_tag)) {
            return Err(Failure::other("the object has changed since the start; start again on what is there now"));
        }
        if bytes.len() as u64 != range.end - range.start {
            return Err(Failure::other(format!("at byte {at} {} bytes came instead of {range:?}", bytes.len())));
        }
        Ok(bytes)
    }

    fn see(&self, name: String, meta: &ObjectMeta) -> Stamp {
        let mut hash = Sha256::new();
        hash.update(meta.e_tag.as_deref().unwrap_or_default());
        hash.update(meta.last_modified.timestamp_micros().to_le_bytes());
        let state = hash.finalize().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(name.clone(), (meta.size, meta.e_tag.clone()));
        // Not a time, but compared like one. It is short, so that it looks long ago: what changed just now is not kept.
        Stamp { name, bytes: meta.size, modified: state >> 24 }
    }
}

impl Store for Remote {
    fn names(&self, folder: &str) -> Result<Vec<String>> {
        if self.url.starts_with("http") {
            return Err(Error::usage(format!(
                "'{}' cannot be listed; name the shards, as in --data-dir '{}{{train-{{000..127}},val-000}}.tar'",
                self.url, self.url
            )));
        }
        let listed = wait(self.store.list_with_delimiter(Some(&self.key(folder))));
        let listed = listed.map_err(|reason| Error::io("list", &self.url)(failure(&reason, 0)))?;
        let names = listed.objects.iter().filter_map(|object| object.location.filename());
        Ok(names.map(String::from).collect())
    }

    fn stamp(&self, name: &str) -> Result<Option<Stamp>> {
        let key = self.key(name);
        match wait(self.store.head(&key)) {
            Ok(meta) => Ok(Some(self.see(name.to_string(), &meta))),
            Err(Refusal::NotFound { .. }) => Ok(None),
            Err(reason) => Err(Error::io("read", self.path(name))(failure(&reason, 0))),
        }
    }

    fn read(&self, name: &str, range: Range<u64>) -> Read<Vec<u8>> {
        if range.is_empty() { Ok(Vec::new()) } else { self.get(name, range).map(Vec::from) }
    }

    fn open(&self, name: &str) -> Read<Box<dyn ReadAt>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let (Some((length, _)), Some(remote)) = (seen, self.own.upgrade()) else {
            return Err(ErrorKind::NotFound.into());
        };
        Ok(Box::new(Window { remote, name: name.into(), length, held: RefCell::default() }))
    }

    fn path(&self, name: &str) -> PathBuf {
        format!("{}{name}", self.url).into()
    }

    fn index_places(&self, name: &str) -> Vec<PathBuf> {
        cached_index(self.url.as_bytes(), name).into_iter().collect()
    }

    fn parallel(&self) -> usize {
        REQUESTS
    }
}

/// Waits for a request and its repetitions.
fn wait<T>(request: impl Future<Output = object_store::Result<T>>) -> object_store::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|reason| Refusal::Generic { store: "runtime", source: reason.into() })?;
    runtime.block_on(request)
}

/// Why a request failed, and what to do.
fn failure(reason: &Refusal, at: u64) -> Failure {
    let remedy = match reason {
        Refusal::NotFound { .. } => "fetch a new list of the shards, or put the object back",
        Refusal::PermissionDenied { .. } | Refusal::Unauthenticated { .. } => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for public objects"
        }
        _ => "go on with --resume when the store answers again, or try for longer with data.retry_seconds",
    };
    Failure::other(format!("at byte {at}: {}; {remedy}", one_line(reason)))
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
