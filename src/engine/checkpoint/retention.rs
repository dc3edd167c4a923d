//! Decides which checkpoints are kept; the store deletes the others.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    pub last: usize,
    /// How many of those with the best validation; the best one is always kept.
    pub best: usize,
}

/// The steps to delete, in ascending order; `checkpoints` are steps in any order with their accuracy if known.
///
/// The newest `keep.last` are kept, `best`, and the `keep.best` most accurate, of equals the earlier. The newest one is
/// kept even if `keep.last` is 0, since a run resumes from it.
pub fn retain(checkpoints: &[(usize, Option<f64>)], best: Option<usize>, keep: Keep) -> Vec<usize> {
    let mut sorted = checkpoints.to_vec();
    sorted.sort_unstable_by_key(|(step, _)| *step);
    sorted.dedup_by_key(|(step, _)| *step);
    let mut ranked: Vec<_> = sorted.iter().filter_map(|(step, accuracy)| Some((*step, (*accuracy)?))).collect();
    ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let top: Vec<usize> = ranked.into_iter().take(keep.best).map(|(step, _)| step).collect();
    let old = sorted.len().saturating_sub(keep.last.max(1));
    let given_up = sorted[..old].iter().map(|(step, _)| *step);
    given_up.filter(|step| Some(*step) != best && !top.contains(step)).collect()
}
