//! What is found in a part of a data set while its index is made: samples, and images that are left out.

use kiln_system::Result;

use super::config::Corrupt;
use super::index::{Sample, Stamp};
use super::samples::damaged;

/// Damaged images that a note names before it only counts the rest.
const MOST_NAMES: usize = 3;

/// The samples of a folder or of a file with many samples.
#[derive(Default)]
pub(super) struct FoundSamples {
    pub(super) samples: Vec<Sample>,
    /// What is wrong with the images that are left out, a sentence each.
    faults: Vec<String>,
    /// The first member that is part of no sample, and why.
    passed: Option<String>,
    /// The files that are left out; none if images have no files of their own.
    pub(super) damaged: Vec<Stamp>,
}

impl FoundSamples {
    /// Takes an image up, or leaves it out because of a `fault`.
    pub(super) fn take(&mut self, sample: Sample, fault: Option<String>, corrupt: Corrupt) -> Result<()> {
        match fault {
            None => self.samples.push(sample),
            Some(fault) if corrupt == Corrupt::Skip => self.faults.push(fault),
            Some(fault) => return Err(damaged(&fault)),
        }
        Ok(())
    }

    /// Notes a member that is part of no sample, which is said if there is none.
    pub(super) fn pass(&mut self, why: impl FnOnce() -> String) {
        self.passed.get_or_insert_with(why);
    }

    /// As [`FoundSamples::pass`], if there is no sample.
    pub(super) fn nothing_but(&self) -> Option<&str> {
        self.passed.as_deref().filter(|_| self.samples.is_empty())
    }

    /// The contents of several parts, in order.
    pub(super) fn of(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::default(), |mut all, part| {
            all.samples.extend(part.samples);
            all.faults.extend(part.faults);
            all.damaged.extend(part.damaged);
            all.passed = all.passed.or(part.passed);
            all
        })
    }

    pub(super) fn faults(&self) -> usize {
        self.faults.len()
    }

    pub(super) fn left_out(&self) -> Option<String> {
        let (count, noun) = (self.faults.len(), if self.faults.len() == 1 { "image" } else { "images" });
        let more = count.saturating_sub(MOST_NAMES);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let named = self.faults[..count.min(MOST_NAMES)].join("; ");
        (count > 0).then(|| format!("{count} damaged {noun} left out by data.corrupt=skip: {named}{more}"))
    }
}
