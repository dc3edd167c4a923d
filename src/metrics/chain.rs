//! A hash chain through the lines of `metrics.jsonl`: each line ends with a digest of itself and of the previous
//! digest, so that a line that was changed, added or removed later no longer fits its neighbours.
//!
//! This finds accidents and careless edits. If all later digests were recomputed, only repeating the steps reveals it.

use sha2::{Digest, Sha256};

/// What precedes the digest in a line.
const KEY: &str = ",\"chain\":\"";

/// The digest of the last line; empty before the first one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chain(String);

impl Chain {
    /// A JSON object with the digest as its last entry.
    pub(super) fn link(&mut self, object: &str) -> String {
        let content = object.strip_suffix('}').unwrap_or(object);
        // 128 bits: no two lines are expected to share them.
        self.0 = Sha256::new().chain_update(&self.0).chain_update(content).finalize()[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{content}{KEY}{}\"}}", self.0)
    }

    /// Continues after a line; a line without a digest begins a new chain.
    pub(super) fn skip(&mut self, line: &str) {
        self.0 = split(line).map_or(String::new(), |(_, digest)| digest.into());
    }
}

fn split(line: &str) -> Option<(&str, &str)> {
    line.strip_suffix("\"}")?.rsplit_once(KEY)
}

/// How the lines of a log fit together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Links {
    /// Lines that follow from the one before.
    pub whole: usize,
    /// Lines at the beginning without a digest, as earlier versions wrote them.
    pub without: usize,
    /// The first line, from 1, that does not follow from the one before.
    pub broken: Option<usize>,
}

pub fn links(text: &str) -> Links {
    let (mut chain, mut links) = (Chain::default(), Links::default());
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        match split(line) {
            None if links.whole == 0 => links.without += 1,
            Some((content, _)) if chain.link(content) == line => links.whole += 1,
            _ => {
                links.broken = Some(links.whole + links.without + 1);
                break;
            }
        }
    }
    links
}
