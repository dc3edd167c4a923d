//! Every way to cut a model into stages.

use std::ops::Range;

/// All cuts of `units` units into `stages` stages of at least one unit each, in the order of their split points. There are
/// `(units - 1)! / ((stages - 1)! (units - stages)!)` of them: at most 126 of ResNet-18, 24,310 of ResNet-34.
pub fn cuts(units: usize, stages: usize) -> Vec<Vec<Range<usize>>> {
    let mut found = Vec::new();
    extend(&mut Vec::new(), 0, [units, stages], &mut found);
    found
}

/// Adds all cuts that begin with `parts`, which end at unit `start`.
fn extend(
    parts: &mut Vec<Range<usize>>,
    start: usize,
    [units, stages]: [usize; 2],
    found: &mut Vec<Vec<Range<usize>>>,
) {
    let left = stages - parts.len();
    // Every later stage needs a unit.
    let ends = if left == 1 { units..units + 1 } else { start + 1..(units + 2).saturating_sub(left) };
    for end in ends.filter(|end| *end > start) {
        parts.push(start..end);
        if left == 1 {
            found.push(parts.clone());
        } else {
            extend(parts, end, [units, stages], found);
        }
        parts.pop();
    }
}
