//! The order of sums: a fixed binary tree over replica ids, `((0+1)+(2+3))+((4+5)+6)`.
//!
//! Floating-point addition rounds, so a sum has the same bits only in the same order. The tree depends only on the size
//! of the world; a process with a block of replicas can add the subtrees that lie wholly in it and send the rest.

use std::ops::Range;

/// Adds the subtrees of the tree over `slots` that lie wholly in `block`. Each sum is in the first slot of
/// its subtree; slots outside the block do not change; an empty slot belongs to the subtree before it.
pub(super) fn fold<T>(slots: &mut [Option<T>], block: Range<usize>, mut add: impl FnMut(T, T) -> T) {
    let size = slots.len();
    let mut stride = 1;
    while stride < size {
        for left in (0..size - stride).step_by(2 * stride) {
            let whole = block.start <= left && (left + 2 * stride).min(size) <= block.end;
            let Some(right) = slots[left + stride].take_if(|_| whole) else { continue };
            slots[left] = slots[left].take().map(|left| add(left, right));
        }
        stride *= 2;
    }
}

/// The first slots of the subtrees that [`fold`] leaves of a block in a tree of `size`.
pub(super) fn roots(size: usize, block: Range<usize>) -> Vec<usize> {
    let mut slots: Vec<Option<()>> = (0..size).map(|slot| block.contains(&slot).then_some(())).collect();
    fold(&mut slots, block, |(), ()| ());
    (0..size).filter(|slot| slots[*slot].is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree over slots as a formula.
    fn formula(size: usize, blocks: &[Range<usize>]) -> String {
        let mut slots: Vec<Option<String>> = (0..size).map(|slot| Some(slot.to_string())).collect();
        let add = |left: String, right: String| format!("({left}+{right})");
        for block in blocks {
            fold(&mut slots, block.clone(), add);
        }
        fold(&mut slots, 0..size, add);
        slots.swap_remove(0).unwrap_or_default()
    }

    #[test]
    fn the_tree_does_not_depend_on_who_holds_which_block() {
        assert_eq!(formula(7, &[]), "(((0+1)+(2+3))+((4+5)+6))");
        for size in 1..=9 {
            for first in 0..=size {
                for second in first..=size {
                    assert_eq!(formula(size, &[0..first, first..second, second..size]), formula(size, &[]));
                }
            }
        }
    }

    #[test]
    fn roots_are_what_a_block_cannot_add_up_alone() {
        assert_eq!(roots(8, 0..4), [0]);
        assert_eq!(roots(8, 1..4), [1, 2]);
        assert_eq!(roots(7, 3..7), [3, 4]);
        assert_eq!(roots(6, 0..3), [0, 2]);
        assert_eq!(roots(4, 2..2), [0; 0]);
    }
}
