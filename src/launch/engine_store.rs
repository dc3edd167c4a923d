//! The key-value store of the rendezvous, in which Gloo publishes its addresses, and NCCL its identifier.

use std::sync::Arc;
use std::time::Duration;

use kiln_engine::parallel::engine::KeyStore;
use kiln_membership::rendezvous::Client;

/// Access to the store for one attempt to connect.
pub(super) struct EngineStore {
    pub client: Arc<Client>,
    pub prefix: String,
    /// How long to wait for values.
    pub limit: Duration,
    /// Whether the attempt is still current.
    pub is_wanted: Box<dyn Fn() -> bool + Send>,
}

impl EngineStore {
    fn name(&self, key: &str) -> Result<String, String> {
        if (self.is_wanted)() {
            Ok(format!("{}engine/{key}", self.prefix))
        } else {
            Err("another change came first".into())
        }
    }
}

impl KeyStore for EngineStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.client.set(&self.name(key)?, value).map_err(|verdict| verdict.0)
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Vec<u8>>, String> {
        let keys = keys.iter().map(|key| self.name(key)).collect::<Result<Vec<_>, _>>()?;
        self.client.get(&keys, self.limit).map_err(|verdict| verdict.0)
    }
}
