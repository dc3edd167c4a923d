//! The trait of outputs for records, the only part of this room that the training loop knows.

use super::record::{EpochRecord, GenerationRecord, StartRecord, StepRecord};
use crate::error::Result;

/// A consumer of records, called by one thread in the order of the run.
///
/// A terminal sink never fails: a closed pipe must not end a training. A file sink fails with
/// [`crate::error::Error::Io`].
pub trait Sink: Send {
    /// After an optimizer step.
    fn step(&mut self, record: &StepRecord) -> Result<()>;

    /// After an epoch and its validation.
    fn epoch(&mut self, record: &EpochRecord) -> Result<()>;

    /// Before the first record of a session.
    fn start(&mut self, _record: &StartRecord) -> Result<()> {
        Ok(())
    }

    /// After a change of membership.
    fn generation(&mut self, _record: &GenerationRecord) -> Result<()> {
        Ok(())
    }

    /// During validation: `done` of `total` batches.
    fn validating(&mut self, _done: usize, _total: usize) -> Result<()> {
        Ok(())
    }

    /// A picture, as a PNG file.
    fn picture(&mut self, _tag: &str, _step: usize, _png: &[u8]) -> Result<()> {
        Ok(())
    }

    /// A line for the person at the terminal.
    fn note(&mut self, _text: &str) -> Result<()> {
        Ok(())
    }

    /// After the last record.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Several sinks as one; the first error ends the call.
impl Sink for Vec<Box<dyn Sink>> {
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.iter_mut().try_for_each(|sink| sink.step(record))
    }

    fn epoch(&mut self, record: &EpochRecord) -> Result<()> {
        self.iter_mut().try_for_each(|sink| sink.epoch(record))
    }

    fn start(&mut self, record: &StartRecord) -> Result<()> {
        self.iter_mut().try_for_each(|sink| sink.start(record))
    }

    fn generation(&mut self, record: &GenerationRecord) -> Result<()> {
        self.iter_mut().try_for_each(|sink| sink.generation(record))
    }

    fn validating(&mut self, done: usize, total: usize) -> Result<()> {
        self.iter_mut().try_for_each(|sink| sink.validating(done, total))
    }

    fn picture(&mut self, tag: &str, step: usize, png: &[u8]) -> Result<()> {
        self.iter_mut().try_for_each(|sink| sink.picture(tag, step, png))
    }

    fn note(&mut self, text: &str) -> Result<()> {
        self.iter_mut().try_for_each(|sink| sink.note(text))
    }

    fn finish(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(|sink| sink.finish())
    }
}
