//! The key-value store of the rendezvous: a key is written once, a reader waits for it, and the size is limited.
//!
//! Collective engines publish their addresses here. Entries live as long as the job, or in an elastic one as long as
//! their generation, so that a late reader finds them.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{MOST_MEMBERS, sentence};

/// The most keys: an attempt to connect takes three of each member, and up to four follow one another.
pub const MOST_KEYS: usize = 16 * MOST_MEMBERS;
/// The most bytes of keys and values together: in an attempt each of the members publishes some 8 KiB, its addresses
/// for all others.
pub const MOST_BYTES: usize = 128 << 20;

#[derive(Debug)]
pub struct Store {
    entries: Mutex<Entries>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Entries {
    values: HashMap<String, Vec<u8>>,
    bytes: usize,
}

impl Default for Store {
    fn default() -> Self {
        Self { entries: Mutex::default(), changes: watch::Sender::new(()) }
    }
}

impl Store {
    /// Stores `value` under `key`. Writing the same bytes again changes nothing; other bytes, or too many, are an
    /// error.
    pub fn set(&self, key: String, value: Vec<u8>) -> Result<(), String> {
        let mut entries = self.entries.lock();
        if let Some(kept) = entries.values.get(&key) {
            let key = sentence::line(&key, 80);
            return if *kept == value { Ok(()) } else { Err(format!("key '{key}' has another value already")) };
        }
        let bytes = entries.bytes.saturating_add(key.len()).saturating_add(value.len());
        if entries.values.len() >= MOST_KEYS || bytes > MOST_BYTES {
            let (key, size) = (sentence::line(&key, 80), MOST_BYTES >> 20);
            return Err(format!("the store is full at key '{key}': it takes {MOST_KEYS} keys and {size} MiB"));
        }
        entries.bytes = bytes;
        entries.values.insert(key, value);
        drop(entries);
        self.changes.send_replace(());
        Ok(())
    }

    /// Removes every key that begins with none of `prefixes`: the keys of earlier generations.
    pub fn keep(&self, prefixes: &[String]) {
        let mut entries = self.entries.lock();
        entries.values.retain(|key, _| prefixes.iter().any(|prefix| key.starts_with(prefix)));
        entries.bytes = entries.values.iter().map(|(key, value)| key.len() + value.len()).sum();
    }

    /// Waits for the values of `keys`; an error that names the missing ones after `limit`.
    pub async fn get(&self, keys: &[String], limit: Duration) -> Result<Vec<Vec<u8>>, String> {
        let mut changes = self.changes.subscribe();
        let all = async {
            loop {
                if let Some(values) = self.look_up(keys) {
                    return values;
                }
                // The sender lives as long as the store, so this cannot fail.
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(limit, all).await.map_err(|_| self.complain(keys, limit))
    }

    fn look_up(&self, keys: &[String]) -> Option<Vec<Vec<u8>>> {
        let entries = self.entries.lock();
        keys.iter().map(|key| entries.values.get(key).cloned()).collect()
    }

    fn complain(&self, keys: &[String], limit: Duration) -> String {
        let entries = self.entries.lock();
        let missing = keys.iter().filter(|key| !entries.values.contains_key(*key)).take(3);
        let missing: Vec<_> = missing.map(|key| format!("'{}'", sentence::line(key, 80))).collect();
        format!("no process set {} within {}", missing.join(", "), sentence::span(limit))
    }
}
