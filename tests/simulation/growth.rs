//! What a change of membership costs with many members: messages, and virtual time until all of them compute.

use super::number;
use crate::rendezvous::world::{Plan, World};

/// Messages and milliseconds of one change.
type Cost = (u64, u64);

fn until_all_compute(world: &mut World, members: usize) -> Cost {
    let (before, generation) = (world.messages, world.generation());
    let time = world.run_until(600_000, |it| it.generation() > generation && it.computing() == members);
    (world.messages - before, time)
}

/// A gathering of `members`, the death of one, the arrival of another.
fn costs(members: usize) -> [Cost; 3] {
    let mut world = World::new(1, Plan::calm(members), false);
    world.open();
    let gathering = until_all_compute(&mut world, members);
    world.kill(members / 2);
    let death = until_all_compute(&mut world, members - 1);
    world.start(1);
    [gathering, death, until_all_compute(&mut world, members)]
}

#[test]
fn a_change_costs_no_more_than_a_few_messages_per_member() {
    let sizes = number("KILN_MEMBERS").map_or(vec![10, 100], |members| vec![members as usize]);
    for members in sizes {
        let costs = costs(members);
        println!("{members} members: messages and milliseconds of gathering, death, arrival: {costs:?}");
        // Each hears of each phase, says that it is ready, and beats once a second; an arrival connects ahead.
        for (messages, _) in &costs[1..] {
            assert!(*messages < 40 * members as u64, "{members} members: {costs:?}");
        }
    }
}
