//! The layer of settings from a launcher's environment.
//!
//! The variables of torchrun, MPI and SLURM set rank, number of processes and address. If the user set one of them to
//! another value, the complaint shows both. Devices and world size are derived from them unless the user set them.

use kiln_membership::environment::{Identity, Sourced};
use toml::Value;

use super::layer::Layer;
use super::schema::plain;

/// Looks up the user's value of a key and where it was set.
pub(crate) type Chosen<'a> = &'a dyn Fn(&str) -> Option<(&'a Value, &'a str)>;

/// The settings from `identity`; contradictions are appended to `lines`.
pub(crate) fn layer(identity: &Identity, chosen: Chosen, lines: &mut Vec<String>) -> Layer {
    let mut layer = Layer::default();
    let number = |said: &Sourced<usize>| Sourced { value: Value::from(said.value as i64), source: said.source.clone() };
    let text = |said: &Sourced<String>| Sourced { value: Value::from(said.value.clone()), source: said.source.clone() };
    let mut set = |key: &str, said: Sourced<Value>, derived: bool| match chosen(key) {
        Some((value, _)) if derived || *value == said.value => {}
        Some((value, place)) => lines.push(format!(
            "{key} is '{}' ({place}), but '{}' ({}, set by {}); remove one of them",
            plain(value),
            plain(&said.value),
            said.source,
            identity.launcher
        )),
        None => layer.set(key, said.value, &said.source),
    };
    // In an elastic run the rendezvous assigns ranks.
    let elastic = chosen("parallel.elastic").is_some_and(|(value, _)| value.as_str() != Some("off"));
    if !elastic {
        set("parallel.rank", number(&identity.rank), false);
        set("parallel.nnodes", number(&identity.processes), false);
    }
    if elastic || identity.processes.value > 1 {
        // A derived address gives way to the user's.
        let address = identity.address.as_ref().map(|said| (text(said), said.source != "MASTER_ADDR"));
        address.into_iter().for_each(|(said, derived)| set("parallel.dist_url", said, derived));
        identity.job_id.iter().for_each(|said| set("parallel.job_id", text(said), true));
    }
    let devices = devices(identity, chosen, &mut layer);
    if chosen("parallel.world_size").is_none() {
        // A replica has a device for each of its stages; for the planner one replica has them all.
        let all = (identity.processes.value * devices) as i64;
        let count = |stages: &Value| stages.as_integer().filter(|stages| *stages > 0).unwrap_or(all);
        let stages = chosen("parallel.stages").map_or(1, |(stages, _)| count(stages));
        let world = (all / stages.max(1)).max(1);
        layer.set("parallel.world_size", world, &identity.processes.source);
    }
    layer
}

/// The number of devices of this process: its share of the machine's `gpu_ids`, or one.
fn devices(identity: &Identity, chosen: Chosen, layer: &mut Layer) -> usize {
    let Some(local) = &identity.local_rank else {
        return chosen("parallel.gpu_ids").and_then(|(ids, _)| ids.as_array()).map_or(1, Vec::len);
    };
    let Some((Value::Array(ids), place)) = chosen("parallel.gpu_ids") else {
        layer.set("parallel.gpu_ids", Value::Array(vec![Value::from(local.value as i64)]), &local.source);
        return 1;
    };
    let neighbours = identity.local_processes.unwrap_or(1);
    if neighbours > ids.len() || local.value >= neighbours {
        return ids.len();
    }
    let part = local.value * ids.len() / neighbours..(local.value + 1) * ids.len() / neighbours;
    let part = ids[part].to_vec();
    let count = part.len();
    layer.set("parallel.gpu_ids", Value::Array(part), place);
    count
}
