//! Where Gloo leaves addresses: the key-value store of the rendezvous.

use std::sync::Arc;
use std::time::Duration;

use super::rendezvous::Client;
use crate::parallel::gloo::KeyStore;

/// A client's way to the store.
pub(super) struct Keys {
    pub client: Arc<Client>,
    /// What each key begins with.
    pub prefix: String,
    /// How long to wait for values.
    pub limit: Duration,
    /// Whether the connection is still wanted.
    pub is_apt: Box<dyn Fn() -> bool + Send>,
}

impl Keys {
    fn name(&self, key: &str) -> Result<String, String> {
        if (self.is_apt)() { Ok(format!("{}gloo/{key}", self.prefix)) } else { Err("another change came first".into()) }
    }
}

impl KeyStore for Keys {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.client.set(&self.name(key)?, value).map_err(|verdict| verdict.0)
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Vec<u8>>, String> {
        let keys = keys.iter().map(|key| self.name(key)).collect::<Result<Vec<_>, _>>()?;
        self.client.get(&keys, self.limit).map_err(|verdict| verdict.0)
    }
}
