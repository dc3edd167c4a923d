//! `TF_CONFIG`, which tells TensorFlow's multi-worker strategies the cluster and their place in it.
//!
//! Ranks count the chief first, if there is one, then the workers. Rank 0 holds the rendezvous at its own address.
//! Parameter servers and evaluators have no counterpart here.

use std::collections::BTreeMap;

use serde::Deserialize;

pub(super) const NAME: &str = "TF_CONFIG";
/// The tasks that train, in the order of ranks.
const TRAINING: [&str; 2] = ["chief", "worker"];

#[derive(Deserialize)]
struct TfConfig {
    cluster: BTreeMap<String, Vec<String>>,
    task: Task,
}

#[derive(Deserialize)]
struct Task {
    #[serde(rename = "type")]
    kind: String,
    index: usize,
}

/// Rank, number of processes and address of rank 0, `tcp://host:port`, as the text of the variable describes them, or
/// why it describes none.
pub(super) fn read(text: &str) -> Result<(usize, usize, String), String> {
    let TfConfig { cluster, task } = serde_json::from_str(text).map_err(|error| {
        format!(
            "{NAME} is not a cluster and a task: {error}; it looks like {{\"cluster\": {{\"worker\": \
             [\"host:port\"]}}, \"task\": {{\"type\": \"worker\", \"index\": 0}}}}"
        )
    })?;
    let other = cluster.keys().chain([&task.kind]).find(|kind| !TRAINING.contains(&kind.as_str()));
    if let Some(kind) = other {
        return Err(format!("{NAME} names a task '{kind}', but every process trains; name chief and worker only"));
    }
    let hosts = |kind: &str| cluster.get(kind).map_or(&[][..], Vec::as_slice);
    let all: Vec<&String> = TRAINING.iter().flat_map(|kind| hosts(kind)).collect();
    let before: usize = TRAINING.iter().take_while(|kind| **kind != task.kind).map(|kind| hosts(kind).len()).sum();
    match all.first() {
        Some(first) if task.index < hosts(&task.kind).len() => {
            Ok((before + task.index, all.len(), format!("tcp://{first}")))
        }
        _ => Err(format!("{NAME} has no {} {} in its cluster; indices count from 0", task.kind, task.index)),
    }
}
