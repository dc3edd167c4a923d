//! Which processes send the state with which a generation begins.

use std::cmp::Reverse;
use std::ops::Range;

/// The state of a training that a process has in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The generation it is from, the steps done, the epoch: the last step of one may be followed by its end on some
    /// processes only. Zeros for no state.
    pub version: [u64; 3],
    pub stages: Range<usize>,
}

/// For each of `stages`, a process of the newest generation that holds its state; `None` if a stage was lost.
pub fn sources(all: &[Holding], stages: usize) -> Option<Vec<usize>> {
    let newest = all.iter().map(|held| held.version[0]).max()?;
    let versions = all.iter().map(|held| held.version).filter(|version| version[0] == newest);
    versions.into_iter().find_map(|version| {
        let (mut found, mut reached) = (Vec::new(), 0);
        while reached < stages {
            let goes_on = |held: &Holding| held.version == version && held.stages.contains(&reached);
            let (process, held) =
                all.iter().enumerate().filter(|(_, held)| goes_on(held)).max_by_key(|(process, held)| {
                    // The first of those that reach as far.
                    (held.stages.end, Reverse(*process))
                })?;
            found.push(process);
            reached = held.stages.end;
        }
        Some(found)
    })
}
