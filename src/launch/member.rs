//! This process at the rendezvous, as the engine asks for it: which process is lost, whether a generation goes on, and
//! the key-value store in which Gloo publishes its addresses, and NCCL its identifier.

use std::sync::Arc;
use std::time::Duration;

use kiln_engine::parallel::engine::{Judge, KeyStore, Symptom};
use kiln_engine::parallel::{Broken, Generation};
use kiln_membership::rendezvous::Client;

pub(super) struct Member(pub(super) Arc<Client>);

impl Generation for Member {
    fn confirm(&self) -> Result<(), Broken> {
        self.0.confirm().map_err(|verdict| Broken::Peer(verdict.0))
    }

    fn is_ending(&self) -> bool {
        self.0.is_ending()
    }
}

/// The rendezvous decides which process caused an error.
impl Judge for Member {
    fn doing(&self, activity: &str) {
        self.0.doing(activity);
    }

    fn verdict(&self, symptom: &Symptom) -> String {
        self.0.trouble(&symptom.0).0
    }
}

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
