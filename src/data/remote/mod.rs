//! Shards in an object store. An object that changes during a run ends it.

mod access_order;
mod cache;
mod prefetch_buffer;
mod prefetcher;
mod window;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Error as Failure, ErrorKind, Result as Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use object_store::{Error as Refusal, ObjectMeta, ObjectStoreExt};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

pub(super) use self::prefetcher::Prefetcher;
use self::window::Window;
use super::config::DataConfig;
use super::index::Stamp;
use super::store::{ReadAt, Store, cached};
use kiln_objects::{Client, wait};
use kiln_system::{Error, Result};

/// Requests at the same time.
const REQUESTS: usize = 32;

/// Objects below a prefix.
#[derive(Debug)]
pub(super) struct Remote {
    client: Client,
    /// The length and the ETag of the objects seen so far.
    seen: Mutex<HashMap<String, (u64, Option<String>)>>,
    /// Itself, for the readers of its objects.
    own: std::sync::Weak<Self>,
}

impl Remote {
    /// Those below `root`, as in `https://host/path` or `s3://bucket/path`.
    pub(super) fn open(root: &Path, config: &DataConfig) -> Result<Arc<Self>> {
        // The pattern for names may hold some, too.
        Client::check(&config.dir.to_string_lossy(), "--data-dir")?;
        let client = Client::open(&root.to_string_lossy(), "--data-dir", config.retry_seconds)?;
        Ok(Arc::new_cyclic(|own| Self { client, seen: Mutex::default(), own: own.clone() }))
    }

    /// The bytes `range` of an object, of which there are some.
    fn get(&self, name: &str, range: Range<u64>) -> Read<Bytes> {
        let at = range.start;
        let answer = wait(async {
            let answer = self.client.get(name, Some(range.clone().into()), range.end - range.start).await?;
            Ok((answer.meta.clone(), answer.bytes().await?))
        });
        let (meta, bytes) = answer.map_err(|reason| failure(&reason, at))?;
        let seen = self.seen.lock().get(name).cloned();
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
        let mut seen = self.seen.lock();
        seen.insert(name.clone(), (meta.size, meta.e_tag.clone()));
        // Not a time, but compared like one. It is short, so that it looks long ago: what changed just now is not kept.
        Stamp { name, bytes: meta.size, modified: state >> 24 }
    }
}

impl Store for Remote {
    fn names(&self, folder: &str) -> Result<Vec<String>> {
        let url = &self.client.url;
        if url.starts_with("http") {
            return Err(Error::usage(format!(
                "'{url}' cannot be listed; name the shards, as in --data-dir '{url}{{train-{{000..127}},val-000}}.tar'"
            )));
        }
        let listed = wait(self.client.store.list_with_delimiter(Some(&self.client.key(folder))));
        let remedy = "correct the bucket in --data-dir, or try for longer with data.retry_seconds";
        let refused = |reason| Error::io("list", url)(Failure::other(kiln_objects::failure(&reason, remedy)));
        let listed = listed.map_err(refused)?;
        let names = listed.objects.iter().filter_map(|object| object.location.filename());
        Ok(names.map(String::from).collect())
    }

    fn stamp(&self, name: &str) -> Result<Option<Stamp>> {
        match wait(self.client.store.head(&self.client.key(name))) {
            Ok(meta) => Ok(Some(self.see(name.to_string(), &meta))),
            Err(Refusal::NotFound { .. }) => Ok(None),
            Err(reason) => Err(Error::io("read", self.path(name))(failure(&reason, 0))),
        }
    }

    fn read(&self, name: &str, range: Range<u64>) -> Read<Vec<u8>> {
        if range.is_empty() { Ok(Vec::new()) } else { self.get(name, range).map(Vec::from) }
    }

    fn open(&self, name: &str) -> Read<Box<dyn ReadAt>> {
        let seen = self.seen.lock().get(name).cloned();
        let (Some((length, _)), Some(remote)) = (seen, self.own.upgrade()) else {
            return Err(ErrorKind::NotFound.into());
        };
        Ok(Box::new(Window { remote, name: name.into(), length, held: RefCell::default() }))
    }

    fn path(&self, name: &str) -> PathBuf {
        format!("{}{name}", self.client.url).into()
    }

    fn index_places(&self, name: &str) -> Vec<PathBuf> {
        cached(self.client.url.as_bytes(), &format!("{name}.index")).into_iter().collect()
    }

    fn parallel(&self) -> usize {
        REQUESTS
    }
}

/// Why a request for a part of an object failed, and what to do.
fn failure(reason: &Refusal, at: u64) -> Failure {
    let remedy = match reason {
        Refusal::NotFound { .. } => "fetch a new list of the shards, or put the object back",
        Refusal::NotSupported { .. } => {
            "shards are read in parts, by requests for ranges: serve them with a server that answers those, or copy them and \
             name their folder with --data-dir"
        }
        _ => "go on with --resume when the store answers again, or try for longer with data.retry_seconds",
    };
    Failure::other(format!("at byte {at}: {}", kiln_objects::failure(reason, remedy)))
}
