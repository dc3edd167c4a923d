//! All layers of a configuration merged, with the place where each value was set.

use ::config::{Value as Placed, ValueKind};
use kiln_system::{Error, Result};

use super::Config;
use super::layer::Layer;

pub(super) const DEFAULTS: &str = "config/default.toml";

pub(crate) struct Merged {
    pub config: Config,
    values: Placed,
}

impl Merged {
    /// Merges layers; later ones win.
    ///
    /// # Errors
    /// [`Error::Usage`] if a value does not have the type of its key.
    pub(super) fn of<'a>(layers: impl Iterator<Item = &'a Layer>) -> Result<Self> {
        let builder = layers.cloned().fold(::config::Config::builder(), |builder, layer| builder.add_source(layer));
        let built = builder.build().map_err(|error| Error::usage(error.to_string()))?;
        let values = built.cache.clone();
        let config = built.try_deserialize().map_err(|error| Error::usage(error.to_string()))?;
        Ok(Self { config, values })
    }

    /// Whether `key` has its default because no layer set it.
    pub(crate) fn is_default(&self, key: &str) -> bool {
        self.place(key).contains(DEFAULTS)
    }

    /// Where the value of `key` was set.
    pub(crate) fn place(&self, key: &str) -> &str {
        key.split('.').try_fold(&self.values, field).and_then(Placed::origin).unwrap_or("by default")
    }
}

fn field<'a>(value: &'a Placed, name: &str) -> Option<&'a Placed> {
    match &value.kind {
        ValueKind::Table(fields) => fields.get(name),
        _ => None,
    }
}
