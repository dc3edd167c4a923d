//! The time of the forward and backward passes of a step in stages.
//!
//! A stage takes its turns in the order of the engine ([`turns`]). A turn begins when the stage is free and its
//! neighbour has finished the input. Receiving the input takes time, since a tensor is sent when the receiver asks for
//! it. Sending takes no time of the sender.

use kiln_engine::parallel::{Turn, turns};

/// What a stage does in each micro-batch, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    pub forward: f64,
    pub backward: f64,
    /// Receiving what the stage before passes on; that stage receives the gradient in the same time. 0 for the first.
    pub receiving: f64,
}

/// Seconds until the last stage, in time, has done all its turns. Stage `i` begins `ahead[i]` forward passes before its
/// first backward pass.
pub fn seconds(work: &[Work], ahead: &[usize], micro_batches: usize) -> f64 {
    let turns: Vec<Vec<Turn>> = ahead.iter().map(|ahead| turns(micro_batches, *ahead)).collect();
    let mut next = vec![0; work.len()];
    let mut clock = vec![0.0_f64; work.len()];
    // When each pass was done, by stage and micro-batch.
    let mut forward = vec![vec![None; micro_batches]; work.len()];
    let mut backward = forward.clone();
    // Each round does what can be done; there is always something, as the order of turns has no circle.
    while next.iter().zip(&turns).any(|(next, turns)| *next < turns.len()) {
        for stage in 0..work.len() {
            let own = work[stage];
            while let Some(turn) = turns[stage].get(next[stage]) {
                let (needs, receiving) = match *turn {
                    Turn::Forward(_) if stage == 0 => (Some(0.0), 0.0),
                    Turn::Forward(micro) => (forward[stage - 1][micro], own.receiving),
                    Turn::Backward(_) if stage + 1 == work.len() => (Some(0.0), 0.0),
                    Turn::Backward(micro) => (backward[stage + 1][micro], work[stage + 1].receiving),
                };
                let Some(since) = needs else { break };
                let begin = clock[stage].max(since) + receiving;
                let (done, duration) = match *turn {
                    Turn::Forward(micro) => (&mut forward[stage][micro], own.forward),
                    Turn::Backward(micro) => (&mut backward[stage][micro], own.backward),
                };
                clock[stage] = begin + duration;
                *done = Some(clock[stage]);
                next[stage] += 1;
            }
        }
    }
    clock.into_iter().fold(0.0, f64::max)
}
