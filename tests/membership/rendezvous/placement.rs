//! Placement: blocks cover all replicas in proportion to the devices, and change as little as possible.

use std::ops::Range;

use kiln_membership::rendezvous::placement::{Block, Candidate, place};
use proptest::prelude::*;

fn hosts(devices: &[(u64, usize)]) -> Vec<Candidate> {
    devices.iter().map(|&(id, devices)| Candidate { id, devices, nanoseconds: 0 }).collect()
}

fn ranges(blocks: &[Block]) -> Vec<(u64, Range<usize>)> {
    blocks.iter().map(|block| (block.id, block.replicas.clone())).collect()
}

/// `(id, devices in use, size)` of each block.
fn sizes(blocks: &[Block]) -> Vec<(u64, usize, usize)> {
    blocks.iter().map(|block| (block.id, block.devices, block.replicas.len())).collect()
}

#[test]
fn a_new_job_is_placed_in_order_of_seniority_and_in_proportion_to_devices() {
    let blocks = place(8, &hosts(&[(7, 1), (3, 2), (5, 1)]), &[]);
    assert_eq!(ranges(&blocks), [(7, 0..2), (3, 2..6), (5, 6..8)]);
}

#[test]
fn what_does_not_divide_goes_to_the_largest_remainder_and_then_to_the_earlier() {
    assert_eq!(sizes(&place(8, &hosts(&[(1, 1), (2, 1), (3, 1)]), &[])), [(1, 1, 3), (2, 1, 3), (3, 1, 2)]);
    assert_eq!(sizes(&place(10, &hosts(&[(1, 1), (2, 3)]), &[])), [(1, 1, 3), (2, 3, 7)]);
    assert_eq!(sizes(&place(9, &hosts(&[(1, 1), (2, 3)]), &[])), [(1, 1, 2), (2, 3, 7)]);
}

#[test]
fn later_hosts_use_fewer_devices_or_none_if_there_are_more_devices_than_replicas() {
    let blocks = place(8, &hosts(&[(1, 4), (2, 6), (3, 1)]), &[]);
    assert_eq!(sizes(&blocks), [(1, 4, 4), (2, 4, 4)]);
    assert_eq!(sizes(&place(2, &hosts(&[(1, usize::MAX), (2, usize::MAX)]), &[])), [(1, 2, 2)]);
}

#[test]
fn hosts_that_stay_keep_their_order_whatever_their_seniority() {
    let blocks = place(6, &hosts(&[(1, 1), (2, 1), (3, 1)]), &[(3, 0..2), (9, 2..4), (1, 4..6)]);
    assert_eq!(ranges(&blocks), [(3, 0..2), (2, 2..4), (1, 4..6)]);
}

#[test]
fn a_newcomer_takes_the_place_of_the_lost_host() {
    let before = [(1, 0..4), (2, 4..8), (3, 8..12)];
    assert_eq!(ranges(&place(12, &hosts(&[(1, 1), (3, 1), (4, 1)]), &before)), [(1, 0..4), (4, 4..8), (3, 8..12)]);
    // Rank 0 is never a newcomer while anybody from before is there.
    assert_eq!(ranges(&place(12, &hosts(&[(2, 1), (3, 1), (4, 1)]), &before))[0].0, 2);
}

#[test]
fn a_newcomer_goes_between_two_hosts_where_fewer_replicas_move() {
    let blocks = place(8, &hosts(&[(1, 1), (2, 1), (3, 2)]), &[(1, 0..4), (2, 4..8)]);
    assert_eq!(ranges(&blocks), [(1, 0..2), (3, 2..6), (2, 6..8)]);
}

#[test]
fn a_newcomer_goes_to_the_end_where_places_are_equal() {
    let blocks = place(4, &hosts(&[(1, 1), (2, 1)]), &[(1, 0..4)]);
    assert_eq!(ranges(&blocks), [(1, 0..2), (2, 2..4)]);
}

#[test]
fn nothing_is_placed_on_nobody() {
    assert_eq!(place(8, &[], &[(1, 0..8)]), []);
    assert_eq!(place(8, &hosts(&[(1, 0)]), &[]), []);
    assert_eq!(place(0, &hosts(&[(1, 1)]), &[]), []);
}

fn moved(blocks: &[Block], before: &[(u64, Range<usize>)]) -> usize {
    let host = |replica| before.iter().find(|(_, range)| range.contains(&replica)).map(|(id, _)| *id);
    let changed = |block: &Block| block.replicas.clone().filter(|&replica| host(replica) != Some(block.id)).count();
    blocks.iter().map(changed).sum()
}

/// Blocks of the same hosts with the newcomer `id` at `place` instead.
fn with_newcomer_at(place: usize, blocks: &[Block], id: u64) -> Vec<Block> {
    let mut order: Vec<_> = blocks.iter().filter(|block| block.id != id).cloned().collect();
    order.insert(place, blocks.iter().find(|block| block.id == id).unwrap().clone());
    let mut start = 0;
    for block in &mut order {
        block.replicas = start..start + block.replicas.len();
        start = block.replicas.end;
    }
    order
}

#[test]
fn faster_hosts_get_more_replicas_if_that_pays() {
    let placed = |world: usize, all: &[(usize, u64)], before: &[(u64, Range<usize>)]| {
        let candidate = |(id, &(devices, nanoseconds))| Candidate { id, devices, nanoseconds };
        place(world, &(1..).zip(all).map(candidate).collect::<Vec<_>>(), before)
    };
    let sizes = |world: usize, all: &[(usize, u64)]| -> Vec<usize> {
        placed(world, all, &[]).iter().map(|block| block.replicas.len()).collect()
    };
    assert_eq!(sizes(8, &[(1, 100), (1, 200)]), [5, 3]);
    assert_eq!(sizes(4, &[(1, 100), (1, 300)]), [3, 1]);
    // Two devices share what their process hosts.
    assert_eq!(sizes(8, &[(2, 100), (1, 100)]), [5, 3]);
    assert_eq!(sizes(9, &[(2, 200), (1, 100)]), [4, 5]);
    // Everybody has a replica, however slow; nothing changes for less than 5 %, or if one is not timed.
    assert_eq!(sizes(4, &[(1, 1), (1, u64::MAX), (1, u64::MAX)]), [2, 1, 1]);
    assert_eq!(sizes(100, &[(1, 100), (1, 104)]), [50, 50]);
    assert_eq!(sizes(4, &[(1, 100), (1, 0)]), [2, 2]);
    // Who stays keeps what it can.
    let blocks = placed(8, &[(1, 100), (1, 300)], &[(1, 0..4), (2, 4..8)]);
    assert_eq!(ranges(&blocks), [(1, 0..6), (2, 6..8)]);
}

proptest! {
    #[test]
    fn every_replica_has_a_place_at_any_speed(
        world in 0_usize..300,
        hosts in proptest::collection::vec((0_usize..9, 1_u64..2000), 1..20),
    ) {
        let all: Vec<_> =
            (0..).zip(&hosts).map(|(id, &(devices, nanoseconds))| Candidate { id, devices, nanoseconds }).collect();
        let blocks = place(world, &all, &[]);
        let end = |blocks: &[Block]| {
            blocks.iter().map(|it| it.replicas.len().div_ceil(it.devices) as u64 * hosts[it.id as usize].1).max()
        };
        let untimed: Vec<_> = all.iter().map(|it| Candidate { nanoseconds: 0, ..*it }).collect();
        prop_assert_eq!(blocks.last().map_or(0, |block| block.replicas.end), place(world, &untimed, &[]).last().map_or(0, |block| block.replicas.end));
        prop_assert!(blocks.iter().all(|block| block.replicas.len() >= block.devices));
        prop_assert!(end(&blocks) <= end(&place(world, &untimed, &[])));
    }

    #[test]
    fn every_replica_is_placed_once_and_shares_are_fair(
        world in 0_usize..300,
        devices in proptest::collection::vec(0_usize..9, 0..40),
        before in proptest::collection::vec((0_u64..50, 0_usize..300, 0_usize..300), 0..10),
    ) {
        let all: Vec<_> = devices.iter().enumerate().map(|(id, &devices)| Candidate { id: id as u64, devices, nanoseconds: 0 }).collect();
        let before: Vec<_> = before.into_iter().map(|(id, start, end)| (id, start..end)).collect();
        let blocks = place(world, &all, &before);
        let mut next = 0;
        for block in &blocks {
            prop_assert_eq!(block.replicas.start, next);
            prop_assert!(block.devices >= 1 && block.replicas.len() >= block.devices, "{:?}", block);
            next = block.replicas.end;
        }
        let in_use: usize = blocks.iter().map(|block| block.devices).sum();
        prop_assert_eq!(in_use, world.min(devices.iter().sum()));
        prop_assert_eq!(next, if in_use == 0 { 0 } else { world });
        for block in &blocks {
            let exact = (world * block.devices) as f64 / in_use as f64;
            prop_assert!((block.replicas.len() as f64 - exact).abs() < 1.0, "{:?}", blocks);
        }
    }

    #[test]
    fn one_newcomer_moves_no_more_replicas_than_it_must(
        world in 32_usize..200,
        devices in proptest::collection::vec(1_usize..5, 3..8),
        lost in 0_usize..8,
        fresh in 1_usize..5,
    ) {
        let first: Vec<_> = devices.iter().enumerate().map(|(id, &devices)| Candidate { id: id as u64, devices, nanoseconds: 0 }).collect();
        let before = ranges(&place(world, &first, &[]));
        let mut next = first.clone();
        next.remove(lost % first.len());
        next.push(Candidate { id: 99, devices: fresh, nanoseconds: 0 });
        let blocks = place(world, &next, &before);
        if blocks.iter().any(|block| block.id == 99) {
            let stays = |id: &u64| blocks.iter().any(|block| block.id == *id);
            let stayed: Vec<_> = before.iter().map(|(id, _)| *id).filter(stays).collect();
            let order: Vec<_> = blocks.iter().map(|block| block.id).filter(|id| *id != 99).collect();
            prop_assert_eq!(order, stayed);
            for place in 1..blocks.len() {
                let other = with_newcomer_at(place, &blocks, 99);
                prop_assert!(moved(&blocks, &before) <= moved(&other, &before), "{:?} against {:?}", blocks, other);
            }
            prop_assert_ne!(blocks[0].id, 99);
        }
    }
}
