//! Whether all replicas hold the same state, by checksums, and whether there is room to save it.
//!
//! Replicas start equal and take the same steps, so what they train and what their optimizers remember has the same
//! bits. A device whose memory or arithmetic fails silently breaks that. The checksums of all are compared before every
//! checkpoint and every [`Plan::check_every`](super::Plan::check_every) steps between, so that what is saved is what
//! all agree on.

use std::collections::HashMap;

use kiln_ops::BetweenSteps;
use kiln_system::{Error, Result};
use tracing::info_span;

use super::{Checksum, Event, HostBackend, Key, Operation, Replica, Task};
use crate::nn::{TensorSet, flat};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    Check,
    /// A checkpoint within an epoch.
    Step,
    Epoch,
}

pub(super) const OCCASIONS: usize = 3;

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Whether replicas are compared between two checkpoints.
    pub(super) fn is_check_due(&self) -> bool {
        self.compares() && self.position.global_step.is_multiple_of(self.plan.check_every)
    }

    fn compares(&self) -> bool {
        self.plan.check_every > 0 && self.plan.world.size > 1
    }

    /// Compares the states of all replicas.
    ///
    /// # Errors
    /// [`Error::Difference`] naming those that differ, [`Error::Training`] if no majority is right; then all workers
    /// return it.
    pub(super) fn check(&self) -> Result<()> {
        self.meet_others(Occasion::Check, 0, true, self.checksum()).map(drop)
    }

    /// Returns when there is room for one more state to save, and all replicas hold the same one. All workers wait
    /// together, so that no limit strikes them while the disk is slow.
    pub(super) fn make_room(&mut self, occasion: Occasion) -> Result<()> {
        let everyone = self.stage.everyone.clone();
        let (saves, sum) = (everyone.rank() == 0, self.checksum());
        for round in 0.. {
            let limit = everyone.threads.limit(self.key(Operation::Comparison)) / 4;
            let is_free = !saves || self.slot.is_free_within(limit);
            if !is_free && round == 0 {
                (self.report)(Event::Waiting { step: self.position.global_step });
            }
            match self.meet_others(occasion, round, is_free, sum) {
                Ok(false) => {}
                // Another process is gone, which is no reason not to save; the next collective says so.
                Ok(true) | Err(Error::PeerLost(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Exchanges checksums, and returns whether there is room.
    fn meet_others(&self, occasion: Occasion, round: usize, is_free: bool, sum: u64) -> Result<bool> {
        let (everyone, world) = (&self.stage.everyone, &self.plan.world);
        let device = world.device_of(self.collective.rank());
        // Halves of a checksum are exact as f64.
        let values = vec![f64::from(is_free), f64::from((sum >> 32) as u32), f64::from(sum as u32), device as f64];
        let micro_batch = round * OCCASIONS + occasion as usize;
        let all = everyone.all_gather(Key { micro_batch, ..self.key(Operation::Comparison) }, values, |all| all)?;
        let blocks = &self.stage.world.blocks;
        let place = |worker: usize| match blocks.iter().position(|block| block.contains(&worker)) {
            Some(process) if blocks.len() > 1 => format!("device {} of process {process}", all[worker][3]),
            _ => format!("device {}", all[worker][3]),
        };
        let sums: Vec<_> = all.iter().map(|values| [values[1], values[2]].map(f64::to_bits)).collect();
        let mut stages = sums.chunks(world.size).enumerate();
        let fault = stages.find_map(|(stage, sums)| difference(sums, |replica| place(stage * world.size + replica)));
        let Some((has_majority, fault)) = fault else { return Ok(all[0][0] != 0.0) };
        // Nobody leaves before all know, or a process of an elastic run would take the others for lost and go on.
        drop(everyone.all_gather(self.key(Operation::Leaving), vec![0.0], |all| all));
        let step = self.position.global_step;
        let rule = "no checkpoint has them: go on with --resume latest, or start anew if there is no checkpoint";
        let error = if has_majority { Error::Difference } else { Error::Training };
        Err(error(format!("after step {step} {fault}; {rule}, and leave out a device that does it again")))
    }

    /// Of what is trained and what the optimizer remembers, the same on all replicas if nothing is compared. Tensors
    /// that are not trained are left out: running statistics may be each replica's own.
    fn checksum(&self) -> u64 {
        let mut sum = Checksum::default();
        // Replicas of a process with the update in parts have one copy of the weights.
        let has_copy = self.reduction.own.is_none() || self.collective.is_distributed();
        if self.compares() && has_copy {
            let _phase = BetweenSteps::enter(info_span!("checksum"));
            sum.add_tensors(flat(&self.model(), TensorSet::Trained));
            // Of an update in parts each remembers its own.
            if self.reduction.own.is_none() {
                sum.add_tensors(self.rule.lock().memory());
            }
        }
        sum.value()
    }
}

/// Whether a majority of the replicas has the same checksum, and what is wrong with the others, if anything is; `place`
/// says where a replica is.
fn difference<S: Copy + Eq + std::hash::Hash>(sums: &[S], place: impl Fn(usize) -> String) -> Option<(bool, String)> {
    let mut counts = HashMap::new();
    sums.iter().for_each(|sum| *counts.entry(*sum).or_insert(0) += 1);
    if counts.len() < 2 {
        return None;
    }
    let majority = counts.into_iter().find(|(_, count)| 2 * count > sums.len());
    let Some((right, count)) = majority else {
        let all: Vec<_> = (0..sums.len()).map(|replica| format!("{replica} on {}", place(replica))).collect();
        let fault = format!("replicas do not hold the same weights and no majority does ({})", all.join(", "));
        return Some((false, fault));
    };
    let wrong = sums.iter().enumerate().filter(|(_, sum)| **sum != right);
    let wrong: Vec<_> = wrong.map(|(replica, _)| format!("replica {replica} on {}", place(replica))).collect();
    let does = if wrong.len() == 1 { "does" } else { "do" };
    Some((true, format!("{} {does} not hold the weights of the other {count}", wrong.join(" and "))))
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn the_majority_is_right() {
        let said = |sums: &[u64]| difference(sums, |replica| format!("card {replica}")).map(|(_, fault)| fault);
        assert_eq!(said(&[7]), None);
        assert_eq!(said(&[7, 7, 7, 7]), None);
        let one = "replica 2 on card 2 does not hold the weights of the other 3";
        assert_eq!(said(&[7, 7, 8, 7]).as_deref(), Some(one));
        let two = "replica 0 on card 0 and replica 3 on card 3 do not hold the weights of the other 3";
        assert_eq!(said(&[8, 7, 7, 9, 7]).as_deref(), Some(two));
        let half = "replicas do not hold the same weights and no majority does (0 on card 0, 1 on card 1)";
        assert_eq!(said(&[8, 7]).as_deref(), Some(half));
        assert!(said(&[8, 7, 8, 7]).is_some_and(|said| said.contains("no majority")));
    }
}
