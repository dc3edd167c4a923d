//! States that processes hold after others were lost.

use std::ops::Range;

use kiln_membership::{Holding, sources};

fn of(all: &[([u64; 3], Range<usize>)], stages: usize) -> Option<Vec<usize>> {
    let all: Vec<Holding> =
        all.iter().map(|(version, stages)| Holding { version: *version, stages: stages.clone() }).collect();
    sources(&all, stages)
}

#[test]
fn parts_of_one_version_make_up_a_state() {
    // The first process with all of the newest generation.
    let whole = [([1, 9, 0], 0..1), ([2, 5, 0], 0..1), ([2, 6, 0], 0..1), ([0, 0, 0], 0..0)];
    assert_eq!(of(&whole, 1), Some(vec![1]));
    // Few and large parts, of neighbours that may overlap.
    let parts = [([3, 7, 1], 2..4), ([3, 7, 1], 0..1), ([3, 7, 1], 0..3), ([2, 7, 1], 0..4)];
    assert_eq!(of(&parts, 4), Some(vec![2, 0]));
    // Of two versions the one that is there as a whole.
    let mixed = [([3, 8, 1], 0..1), ([3, 7, 1], 1..2), ([3, 7, 1], 0..1)];
    assert_eq!(of(&mixed, 2), Some(vec![2, 1]));
    // A stage is lost.
    assert_eq!(of(&[([3, 8, 1], 0..1), ([3, 8, 1], 2..3), ([2, 8, 1], 0..3)], 3), None);
    assert_eq!(of(&[([3, 8, 1], 0..1), ([3, 7, 1], 1..2)], 2), None);
}
