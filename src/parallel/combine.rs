//! Computes the result of a collective from the messages of all replicas of a process, with the other processes if
//! there are any. The last replica to arrive does this for all of them.

use std::sync::Arc;

use super::config::ReducePrecision;
use super::key::{Broken, Key};
use super::local::{Group, Message};
use super::sums::{Sum, folded};
use super::tree::add;

/// How many values each message has.
fn common_length(key: Key, messages: &[Message]) -> Result<usize, Broken> {
    let length = messages[0].len();
    let unequal = || Broken::Replica(format!("replicas brought different numbers of values to the {key}"));
    messages.iter().all(|message| message.len() == length).then_some(length).ok_or_else(unequal)
}

impl Group {
    /// The sum of the shares of all replicas of the world, which are sent in `precision`.
    pub(super) fn sum(&self, key: Key, messages: Vec<Message>, precision: ReducePrecision) -> Result<Message, Broken> {
        common_length(key, &messages)?;
        let share = |message: Message| Arc::unwrap_or_clone(message.into_floats());
        let shares: Vec<Vec<f32>> = messages.into_iter().map(share).collect();
        let sum = match &self.processes {
            None => self.fold(shares),
            Some(processes) => {
                let shares = if processes.ordered { shares } else { vec![self.fold(shares)] };
                Sum { processes, key, limit: self.limit(key), ready: None }.of(shares, precision)?
            }
        };
        Ok(Message::Floats(Arc::new(sum)))
    }

    /// The sum in the tree over the shares.
    fn fold(&self, shares: Vec<Vec<f32>>) -> Vec<f32> {
        folded(shares.into_iter().map(Some).collect(), |mut left, right| {
            add(&mut left, &right);
            self.keep(right);
            left
        })
    }

    /// All replicas' values, in rank order.
    pub(super) fn gather(&self, key: Key, messages: Vec<Message>) -> Result<Vec<Vec<f64>>, Broken> {
        let length = common_length(key, &messages)?;
        let own: Vec<Vec<f64>> = messages.into_iter().map(Message::into_values).collect();
        let Some(processes) = &self.processes else { return Ok(own) };
        let all = processes.gather_replicas(key, &own.concat(), length, self.limit(key))?;
        let replicas = 0..processes.replicas();
        Ok(replicas.map(|replica| all[replica * length..][..length].to_vec()).collect())
    }

    /// The values of replica `root` of the world.
    pub(super) fn broadcast(&self, key: Key, root: usize, mut messages: Vec<Message>) -> Result<Message, Broken> {
        let here = root.checked_sub(self.first()).filter(|place| *place < self.size);
        let own = here.map(|place| messages.swap_remove(place));
        let Some(processes) = &self.processes else { return Ok(own.unwrap_or(Message::Nothing)) };
        let bytes = own.map(|message| bytemuck::cast_slice(&message.into_floats()).to_vec());
        let bytes = processes.broadcast(key, root, bytes, self.limit(key))?;
        Ok(Message::Floats(Arc::new(bytemuck::pod_collect_to_vec(&bytes))))
    }
}
