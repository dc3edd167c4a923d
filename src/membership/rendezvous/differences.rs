//! Compares the configurations of two processes.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::Refusal;
use super::sentence;

/// How many differing settings a refusal names.
const MOST: usize = 5;

/// Refuses a process with a configuration other than a member's.
pub(super) fn compare(
    [theirs, ours]: [&BTreeMap<String, String>; 2],
    [their_name, our_name]: [String; 2],
) -> Result<(), Refusal> {
    let keys: BTreeSet<_> = theirs.keys().chain(ours.keys()).filter(|key| theirs.get(*key) != ours.get(*key)).collect();
    if keys.is_empty() {
        return Ok(());
    }
    let value = |said: Option<&String>| said.map_or("not set".into(), |it| format!("'{}'", sentence::line(it, 80)));
    let difference = |key: &&String| {
        let (key_text, theirs, ours) = (sentence::line(key, 80), value(theirs.get(*key)), value(ours.get(*key)));
        format!("{key_text} is {theirs} on {their_name}, {ours} on {our_name}")
    };
    let mut differences: Vec<_> = keys.iter().take(MOST).map(difference).collect();
    if keys.len() > MOST {
        differences.push(format!("{} more settings differ", keys.len() - MOST));
    }
    Err(Refusal::other_job(format!("{}; give every process the same configuration", differences.join("; "))))
}
