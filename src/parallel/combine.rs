//! Computes the result of a collective from the messages of all replicas of a process, with the other processes if
//! there are any. The last replica to arrive does this for all of them.

use std::sync::Arc;

use burn::tensor::bf16;
use rayon::prelude::*;

use super::key::{Broken, Key};
use super::local::{Group, Message};
use super::processes::Processes;
use super::tree::{add, fold};

/// How many values each message has.
fn common_length(key: Key, messages: &[Message]) -> Result<usize, Broken> {
    let length = messages[0].len();
    let unequal = || Broken::Replica(format!("replicas brought different numbers of values to the {key}"));
    messages.iter().all(|message| message.len() == length).then_some(length).ok_or_else(unequal)
}

impl Group {
    /// The sum of the shares of all replicas of the world; `halves` if shares are bf16 and may be sent so.
    pub(super) fn sum(&self, key: Key, messages: Vec<Message>, halves: bool) -> Result<Message, Broken> {
        let limit = self.limit(key);
        common_length(key, &messages)?;
        let sum = match &self.processes {
            None => self.fold(self.shares(messages)),
            Some(processes) if processes.ordered && halves => {
                let shares: Vec<Vec<bf16>> = messages.into_iter().map(Message::into_halves).collect();
                processes.ordered_sum_bf16(key, &shares, limit)?
            }
            Some(processes) if processes.ordered => processes.ordered_sum(key, self.shares(messages), limit)?,
            Some(processes) => {
                let mut sum = self.fold(self.shares(messages));
                let reduce = if halves { Processes::sum_bf16 } else { Processes::sum };
                reduce(processes, key, &mut sum, limit)?;
                sum
            }
        };
        Ok(Message::Floats(Arc::new(sum)))
    }

    /// The shares in f32.
    fn shares(&self, messages: Vec<Message>) -> Vec<Vec<f32>> {
        let share = |message| match message {
            Message::Floats(values) => Arc::unwrap_or_clone(values),
            message => {
                let mut share = self.spare();
                message.into_halves().par_iter().map(|half| half.to_f32()).collect_into_vec(&mut share);
                share
            }
        };
        messages.into_iter().map(share).collect()
    }

    /// The sum in the tree over the shares.
    fn fold(&self, shares: Vec<Vec<f32>>) -> Vec<f32> {
        let mut slots: Vec<Option<Vec<f32>>> = shares.into_iter().map(Some).collect();
        let count = slots.len();
        fold(&mut slots, 0..count, |left, right| {
            add(left, &right);
            self.keep(right);
        });
        slots.swap_remove(0).unwrap_or_default()
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
