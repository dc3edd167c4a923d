//! The trait of outputs for records, the only part of this room that the training loop knows.

use kiln_system::Result;

use super::record::Record;

/// A consumer of records, called by one thread in the order of the run.
///
/// A terminal sink never fails: a closed pipe must not end a training. A file sink fails with
/// [`kiln_system::Error::Io`].
pub trait Sink: Send {
    /// The next record; the first one of a session is its start.
    fn record(&mut self, record: &Record) -> Result<()>;

    /// During validation: `done` of `total` batches.
    fn validating(&mut self, _done: usize, _total: usize) -> Result<()> {
        Ok(())
    }

    fn picture(&mut self, _tag: &str, _step: usize, _png: &[u8]) -> Result<()> {
        Ok(())
    }

    /// After the last record.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
