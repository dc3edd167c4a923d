//! NCCL between the devices of a run's only process, which has nobody else to talk to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::parallel::engine::{Engine, Judge, KeyStore, Symptom};
use crate::parallel::key::Key;
use crate::parallel::{Links, Processes, World};

/// The process of `world`, which is the only one, with what `connect` makes between its devices; `None` if they meet in
/// memory. Sums are taken in the order of the tree, as in memory.
pub(super) fn between_devices(
    world: &World,
    connect: impl FnOnce(&dyn KeyStore) -> Result<Option<Links>, Symptom>,
) -> Result<Option<Processes>, String> {
    if world.devices.len() == 1 {
        return Ok(None);
    }
    let alone = Arc::new(Alone::default());
    alone.doing("connection of the devices");
    let Some(links) = connect(&Notes::default()).map_err(|symptom| alone.verdict(&symptom))? else { return Ok(None) };
    let stage = |number| {
        let world = world.of_stage(number).filter(|world| world.devices.len() > 1)?;
        Some((alone.clone() as Arc<dyn Engine>, world.blocks))
    };
    let stages = if world.stages > 1 { (0..world.stages).map(stage).collect() } else { Vec::new() };
    let processes = Processes::new(alone.clone(), alone.clone(), world.blocks.clone(), true);
    Ok(Some(processes.with_stages(stages).with_links(Some(links))))
}

/// The engine of one process, where what is sent to all comes back as it is, and the judge of its devices.
#[derive(Debug, Default)]
struct Alone {
    doing: Mutex<String>,
}

impl Engine for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn all_reduce(&self, _: Key, _: &mut [f32], _: Duration) -> Result<(), Symptom> {
        Ok(())
    }

    fn all_gather(&self, _: Key, own: &[u8], _: &[usize], all: &mut [u8], _: Duration) -> Result<(), Symptom> {
        all.copy_from_slice(own);
        Ok(())
    }

    fn all_to_all(
        &self,
        _: Key,
        own: &[u8],
        _: &[usize],
        _: &[usize],
        all: &mut [u8],
        _: Duration,
    ) -> Result<(), Symptom> {
        all.copy_from_slice(own);
        Ok(())
    }

    fn broadcast(&self, _: Key, _: usize, _: &mut [u8], _: Duration) -> Result<(), Symptom> {
        Ok(())
    }

    fn send(&self, key: Key, _: usize, _: &[u8], _: Duration) -> Result<(), Symptom> {
        Err(Symptom(format!("no process is there for the {key}")))
    }

    fn receive(&self, key: Key, _: usize, _: Duration) -> Result<Vec<u8>, Symptom> {
        Err(Symptom(format!("no process is there for the {key}")))
    }

    fn close(&self) {}
}

impl Judge for Alone {
    fn doing(&self, activity: &str) {
        *self.doing.lock() = activity.into();
    }

    fn verdict(&self, symptom: &Symptom) -> String {
        let doing = self.doing.lock();
        let remedy = "NCCL_DEBUG=INFO says more, and with --dist-backend local they meet in memory";
        format!("the devices of this process failed in the {doing}: {symptom}; {remedy}")
    }
}

/// A store of one process, which writes before it reads.
#[derive(Default)]
struct Notes(Mutex<BTreeMap<String, Vec<u8>>>);

impl KeyStore for Notes {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.0.lock().insert(key.into(), value.into());
        Ok(())
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Vec<u8>>, String> {
        let notes = self.0.lock();
        let value = |key| notes.get(key).cloned().ok_or_else(|| format!("nothing was written under '{key}'"));
        keys.iter().map(value).collect()
    }
}
