//! The PyTorch reference numbers: `tests/fixtures/reference`, or the directory in `KILN_REFERENCE_DIR`.

use std::path::PathBuf;

use kiln_engine::state::{HostTensor, StateDict, from_safetensors};
use kiln_training::{ModelConfig, Stem};
use serde_json::Value;

use crate::files::file;

pub struct Reference {
    directory: PathBuf,
    pub config: Value,
    pub pool: StateDict,
}

impl Reference {
    pub fn load() -> Self {
        std::env::var("KILN_REFERENCE_DIR").map_or_else(|_| Self::own(), |directory| Self::at(directory.into()))
    }

    /// That of this repository.
    pub fn own() -> Self {
        Self::at(file("tests/fixtures/reference"))
    }

    fn at(directory: PathBuf) -> Self {
        let mut reference = Self { directory, config: Value::Null, pool: StateDict::new() };
        reference.config = reference.json("config.json");
        reference.pool = reference.tensors("pool");
        reference
    }

    pub fn json(&self, name: &str) -> Value {
        let path = self.directory.join(name);
        serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).unwrap()
    }

    pub fn tensors(&self, name: &str) -> StateDict {
        let path = self.directory.join(format!("{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        from_safetensors(&bytes, &path).unwrap().0
    }

    pub fn has(&self, name: &str) -> bool {
        self.directory.join(name).exists()
    }

    pub fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap_or_else(|| panic!("config.json has no number '{key}'"))
    }

    pub fn count(&self, key: &str) -> usize {
        self.number(key) as usize
    }

    pub fn model(&self, stem: Stem) -> ModelConfig {
        ModelConfig { stem, width: self.count("width"), ..ModelConfig::default() }
    }

    /// The rows of the pool that make up each step's batch.
    pub fn batches(&self) -> Vec<Vec<usize>> {
        let rows = integers(&self.pool["batch_indices"]);
        rows.chunks(self.count("batch")).map(|row| row.iter().map(|i| *i as usize).collect()).collect()
    }
}

pub fn name_of(stem: Stem) -> &'static str {
    match stem {
        Stem::Cifar => "cifar",
        Stem::Imagenet => "imagenet",
    }
}

pub fn floats(tensor: &HostTensor) -> &[f32] {
    tensor.as_f32().expect("the fixture holds f32")
}

pub fn integers(tensor: &HostTensor) -> &[i64] {
    tensor.as_i64().expect("the fixture holds integers")
}

/// Numbers of a JSON array.
pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("an array").iter().map(|number| number.as_f64().expect("a number")).collect()
}
