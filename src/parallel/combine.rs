//! Computes the result of a collective from the messages of all replicas of a process, with the other processes if
//! there are any. The last replica to arrive does this for all of them.

use std::sync::Arc;

use burn::tensor::bf16;
use rayon::prelude::*;

use super::collective::{Broken, Key, Part};
use super::local::Group;
use super::processes::Processes;
use super::tree::{add, fold};

/// The contribution of a replica, or the result.
#[derive(Clone)]
pub(super) enum Message {
    Nothing,
    Floats(Arc<Vec<f32>>),
    Halves(Vec<bf16>),
    Values(Vec<f64>),
    Gathered(Arc<Vec<Vec<f64>>>),
    Part(Part),
}

impl Message {
    /// How many numbers it holds.
    fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Halves(values) => values.len(),
            Self::Values(values) => values.len(),
            Self::Nothing | Self::Gathered(_) | Self::Part(_) => 0,
        }
    }

    pub(super) fn into_floats(self) -> Arc<Vec<f32>> {
        if let Self::Floats(values) = self { values } else { Arc::default() }
    }

    fn into_halves(self) -> Vec<bf16> {
        if let Self::Halves(values) = self { values } else { Vec::new() }
    }

    pub(super) fn into_part(self) -> Part {
        if let Self::Part(part) = self { part } else { Arc::new(()) }
    }

    fn into_values(self) -> Vec<f64> {
        if let Self::Values(values) = self { values } else { Vec::new() }
    }
}

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
