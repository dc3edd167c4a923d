//! Where Gloo leaves addresses: the key-value store of the rendezvous, as whichever kind of member asks it.

use super::rendezvous::Verdict;
use crate::parallel::gloo::KeyStore;

/// A member's two ways to the store.
pub(super) struct Keys<S, G> {
    /// Writes a value.
    pub set: S,
    /// Waits for values.
    pub get: G,
}

impl<S, G> KeyStore for Keys<S, G>
where
    S: Fn(&str, &[u8]) -> Result<(), Verdict> + Send,
    G: Fn(&[String]) -> Result<Vec<Vec<u8>>, Verdict> + Send,
{
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        (self.set)(&format!("gloo/{key}"), value).map_err(|verdict| verdict.0)
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Vec<u8>>, String> {
        let keys: Vec<String> = keys.iter().map(|key| format!("gloo/{key}")).collect();
        (self.get)(&keys).map_err(|verdict| verdict.0)
    }
}
