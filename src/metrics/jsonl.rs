//! `metrics.jsonl`: every record as one line of JSON, for programs that follow or plot a run. The lines form a hash
//! chain.

use std::path::Path;

use kiln_system::Result;

use super::chain::Chain;
use super::journal::Journal;
use super::record::Record;
use super::sink::Sink;

#[derive(Debug)]
pub struct Jsonl {
    journal: Journal,
    chain: Chain,
}

impl Jsonl {
    /// Opens the file for a run that continues after `after_step`, 0 in a new run. `epoch_end` is the step at which the
    /// last completed and validated epoch ended.
    ///
    /// Lines of later steps and epochs, and lines that are not JSON, are dropped: the run will write them again.
    pub fn open(path: &Path, after_step: usize, epoch_end: usize) -> Result<Self> {
        let mut chain = Chain::default();
        let journal = Journal::open(path, |text| up_to(text, after_step, epoch_end, &mut chain))?;
        Ok(Self { journal, chain })
    }
}

impl Sink for Jsonl {
    fn record(&mut self, record: &Record) -> Result<()> {
        self.journal.append((self.chain.link(&json(record)) + "\n").as_bytes())
    }
}

/// A record as a line without its line break.
pub(super) fn json(record: &Record) -> String {
    serde_json::to_string(record).expect("plain numbers have a JSON form")
}

/// The steps up to and including `after_step`, and the epochs that ended at `epoch_end` or before; sets the chain to
/// the last of them. Lines after a dropped one are linked again.
fn up_to(text: &[u8], after_step: usize, epoch_end: usize, chain: &mut Chain) -> Vec<u8> {
    let (mut kept, mut is_whole) = (String::new(), true);
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let record = serde_json::from_slice(line);
        let keeps = match &record {
            Ok(Record::Step(record)) => record.step <= after_step,
            Ok(Record::Replicas(record)) => record.step <= after_step,
            Ok(Record::Epoch(record)) => record.step <= epoch_end,
            // Changes of membership stay in the record even if their steps are repeated.
            Ok(Record::Generation(_)) => true,
            // This session replaces one that began at the same step.
            Ok(Record::Start(record)) => record.step < after_step,
            Err(_) => false,
        };
        is_whole &= keeps;
        let line = match record {
            Ok(record) if keeps && !is_whole => chain.link(&json(&record)),
            Ok(_) if keeps => {
                let line = String::from_utf8_lossy(line).into_owned();
                chain.skip(&line);
                line
            }
            _ => continue,
        };
        kept += &(line + "\n");
    }
    kept.into_bytes()
}
