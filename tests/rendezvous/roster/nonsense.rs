//! No sequence of events makes the roster panic, whoever sends them, and every generation covers all replicas.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kiln::launch::rendezvous::bulletin::{Action, Assembly, Event, Newcomer, Phase, Progress, Ready, Standing};
use kiln::launch::rendezvous::placement::Block;
use kiln::launch::rendezvous::roster::Roster;
use proptest::prelude::*;

use super::chaos::{WORLD, rules};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..4, 1 => Just(u64::MAX), 1 => Just(u64::MAX / 2), 1 => any::<u64>()]
}

fn block() -> impl Strategy<Value = Block> {
    (0_u64..4, number(), 0_usize..7, 0_usize..7).prop_map(|(id, devices, start, end)| Block {
        id,
        devices: devices as usize,
        replicas: start..end,
    })
}

fn assembly() -> impl Strategy<Value = Option<Assembly>> {
    let whole = (1_u64..4).prop_map(|generation| {
        let block = |id: u64| Block { id, devices: 1, replicas: 3 * id as usize..3 * id as usize + 3 };
        Assembly { generation, blocks: vec![block(0), block(1)] }
    });
    let any = (number(), proptest::collection::vec(block(), 0..4));
    let any = any.prop_map(|(generation, blocks)| Assembly { generation, blocks });
    prop_oneof![2 => Just(None), 2 => whole.prop_map(Some), 1 => any.prop_map(Some)]
}

fn newcomer() -> impl Strategy<Value = Newcomer> {
    (0_u64..4, number(), number(), number(), assembly(), any::<bool>()).prop_map(
        |(id, devices, heard, generation, computing, draining)| Newcomer {
            id,
            rank: None,
            host: "h\n".repeat(heard as usize % 200),
            process: 1,
            devices: devices as usize,
            configuration: BTreeMap::new(),
            standing: Standing { generation, step: generation },
            heard,
            computing,
            draining,
            peers: BTreeMap::from([(id, "h\n".repeat(heard as usize % 200))]),
        },
    )
}

fn nonsense() -> impl Strategy<Value = (Event, u64)> {
    let seat = || 0_u64..4;
    let text = || Just(String::from("text\nof a stranger"));
    let ready =
        (number(), number(), number(), proptest::option::of(text())).prop_map(|(generation, step, devices, reason)| {
            let standing = Standing { generation: step, step };
            Ready { generation, standing, devices: devices as usize, reason }
        });
    let progress =
        (text(), number()).prop_map(|(activity, step)| Progress { activity, step, images_per_second: f64::NAN });
    let event = prop_oneof![
        4 => (seat(), newcomer()).prop_map(|(seat, who)| Event::Came(seat, who)),
        1 => (seat(), progress).prop_map(|(seat, progress)| Event::Beat(seat, progress)),
        3 => (seat(), ready).prop_map(|(seat, ready)| Event::Ready(seat, ready)),
        1 => (seat(), number(), text()).prop_map(|(seat, generation, why)| Event::Trouble(seat, generation, why)),
        2 => (seat(), number()).prop_map(|(seat, generation)| Event::Connected(seat, generation)),
        1 => seat().prop_map(Event::Drain),
        1 => number().prop_map(|rank| Event::DrainRank(rank as usize)),
        1 => (seat(), text()).prop_map(|(seat, why)| Event::Left(seat, Some(why))),
        1 => (seat(), text()).prop_map(|(seat, why)| Event::Closed(seat, why)),
        3 => Just(Event::Tick),
    ];
    (event, prop_oneof![0_u64..2000, 0_u64..40_000])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn nonsense_never_panics(seed in proptest::collection::vec(nonsense(), 1..80)) {
        let start = Instant::now();
        let (mut roster, mut now, mut latest) = (Roster::new(rules(), start), 0, 0);
        for (event, time) in seed {
            now += time;
            for action in roster.handle(event, start + Duration::from_millis(now)) {
                let Action::Announce(bulletin) = action else { continue };
                prop_assert!(bulletin.generation >= latest);
                let begins = bulletin.phase == Phase::Running && bulletin.generation > latest;
                // Of an adopted generation, only those who came back are known.
                let adopted = bulletin.why.contains("restarted");
                prop_assert!(!begins || adopted || bulletin.assembly().covers(WORLD));
                latest = bulletin.generation;
            }
        }
    }
}
