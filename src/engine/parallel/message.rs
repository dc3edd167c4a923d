//! What each worker tells all others in a step.

use kiln_system::stop::Reason;

use super::{Counts, Work};

/// Where the norms begin: after the counts, the work, the wishes to end, to save and to measure, and the number of norms.
const NORMS: usize = Counts::VALUES + Work::VALUES + 5;

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct StepMessage {
    pub(super) counts: Counts,
    /// What it did in its last whole step, if that was measured.
    pub(super) work: Work,
    /// Why this process was asked to stop.
    pub(super) stop: Option<Reason>,
    /// Whether the generation must end after this step.
    pub(super) is_ending: bool,
    /// Whether this process was asked to save.
    pub(super) saves: bool,
    /// Whether the next step is measured, if the first worker says so.
    pub(super) measures: bool,
    /// The norms of the gradients that no worker before this one has told.
    pub(super) norms: Vec<f32>,
}

impl StepMessage {
    /// The values on the way, with room for the norms of `tensors`: the messages of all workers have one length.
    pub(super) fn encode(&self, tensors: usize) -> Vec<f64> {
        let mut values = self.counts.to_values().to_vec();
        values.extend(self.work.to_values());
        values.push(self.stop.as_ref().map_or(0, Reason::number).into());
        values.push(self.is_ending.into());
        values.push(self.saves.into());
        values.push(self.measures.into());
        values.push(self.norms.len() as f64);
        values.extend(self.norms.iter().copied().map(f64::from));
        values.resize(NORMS + tensors, 0.0);
        values
    }

    pub fn decode(values: &[f64]) -> Self {
        let [stop, is_ending, saves, measures, norms] = [5, 4, 3, 2, 1].map(|before| values[NORMS - before]);
        Self {
            counts: Counts::from_values(values),
            work: Work::from_values(&values[Counts::VALUES..]),
            stop: Reason::of_number(stop as u32),
            is_ending: is_ending != 0.0,
            saves: saves != 0.0,
            measures: measures != 0.0,
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
        let work = Work { seconds: 0.3, loading: 0.2, sending: 0.1, device: 5 };
        let (is_ending, saves, measures, norms) = (true, true, true, vec![0.1, 7.0]);
        let message = StepMessage { counts, work, stop, is_ending, saves, measures, norms };
        let values = message.encode(4);
        assert_eq!(values.len(), StepMessage::default().encode(4).len());
        assert_eq!(StepMessage::decode(&values), message);
    }
}
