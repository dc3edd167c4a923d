//! Computes the result of a collective from the messages of all replicas of a process, with the other processes if
//! there are any. The last replica to arrive does this for all of them.

use super::key::{Broken, Key};
use super::local::{Group, Message};

fn common_length(key: Key, messages: &[Message]) -> Result<usize, Broken> {
    let length = messages[0].len();
    let unequal = || Broken::Replica(format!("replicas brought different numbers of values to the {key}"));
    messages.iter().all(|message| message.len() == length).then_some(length).ok_or_else(unequal)
}

impl Group {
    /// All replicas' values, in rank order.
    pub(super) fn gather(&self, key: Key, messages: Vec<Message>) -> Result<Vec<Vec<f64>>, Broken> {
        let length = common_length(key, &messages)?;
        let own: Vec<Vec<f64>> = messages.into_iter().map(Message::into_values).collect();
        let Some(processes) = &self.processes else { return Ok(own) };
        let all = processes.gather_replicas(key, &own.concat(), length, self.limit(key))?;
        let replicas = 0..processes.replicas();
        Ok(replicas.map(|replica| all[replica * length..][..length].to_vec()).collect())
    }
}
