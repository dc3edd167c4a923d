//! Which checkpoints stay. Policy only: it says what to delete, the store deletes.

/// The steps to delete, in ascending order.
///
/// The newest `keep_last` steps stay, and `best` wherever it is. At least the newest one stays even if `keep_last` is
/// 0, since a run resumes from it. The order of `steps` does not matter.
pub fn retain(steps: &[usize], best: Option<usize>, keep_last: usize) -> Vec<usize> {
    let mut sorted = steps.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let old = sorted.len().saturating_sub(keep_last.max(1));
    sorted.truncate(old);
    sorted.retain(|step| Some(*step) != best);
    sorted
}
