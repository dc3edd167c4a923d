//! What each worker tells all others in a step.

use kiln_system::stop::Reason;

use super::Counts;

/// Where the norms begin: after the counts, the two wishes to end, the wish to save, and the number of norms.
const NORMS: usize = Counts::VALUES + 4;

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct StepMessage {
    pub(super) counts: Counts,
    /// Why this process was asked to stop.
    pub(super) stop: Option<Reason>,
    /// Whether the generation must end after this step.
    pub(super) is_ending: bool,
    /// Whether this process was asked to save.
    pub(super) saves: bool,
    /// The norms of the gradients that no worker before this one has told.
    pub(super) norms: Vec<f32>,
}

impl StepMessage {
    /// The values on the way, with room for the norms of `tensors`: the messages of all workers have one length.
    pub(super) fn encode(&self, tensors: usize) -> Vec<f64> {
        let mut values = self.counts.to_values().to_vec();
        values.push(self.stop.as_ref().map_or(0, Reason::number).into());
        values.push(self.is_ending.into());
        values.push(self.saves.into());
        values.push(self.norms.len() as f64);
        values.extend(self.norms.iter().copied().map(f64::from));
        values.resize(NORMS + tensors, 0.0);
        values
    }

    pub fn decode(values: &[f64]) -> Self {
        let [stop, is_ending, saves, norms] = [4, 3, 2, 1].map(|before| values[NORMS - before]);
        Self {
            counts: Counts::from_values(values),
            stop: Reason::of_number(stop as u32),
            is_ending: is_ending != 0.0,
            saves: saves != 0.0,
            norms: values[NORMS..][..norms as usize].iter().map(|norm| *norm as f32).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let counts = Counts { loss: 1.5, samples: 3, counted: [2.0, 1.0] };
        let stop = Some(Reason::Signal(15));
        let message = StepMessage { counts, stop, is_ending: true, saves: true, norms: vec![0.1, 7.0] };
        let values = message.encode(4);
        assert_eq!(values.len(), StepMessage::default().encode(4).len());
        assert_eq!(StepMessage::decode(&values), message);
    }
}
