//! No sequence of events makes the roster panic, whoever sends them, and every generation covers all replicas.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kiln_membership::rendezvous::membership::{
    Action, Event, Phase, Placement, ProcessInfo, Progress, Ready, Rules, StateVersion,
};
use kiln_membership::rendezvous::placement::Block;
use kiln_membership::rendezvous::roster::Roster;
use proptest::prelude::*;

const WORLD: usize = 6;

fn rules() -> Rules {
    let time = Duration::from_millis;
    Rules {
        min: 2,
        max: 4,
        world: WORLD,
        beat: time(1000),
        lost_after: time(5000),
        elastic_timeout: time(u64::MAX),
        settle: time(1000),
        ready_timeout: time(20_000),
        strict: false,
    }
}
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

fn placement() -> impl Strategy<Value = Option<Placement>> {
    let whole = (1_u64..4).prop_map(|generation| {
        let block = |id: u64| Block { id, devices: 1, replicas: 3 * id as usize..3 * id as usize + 3 };
        Placement { generation, blocks: vec![block(0), block(1)] }
    });
    let any = (number(), proptest::collection::vec(block(), 0..4));
    let any = any.prop_map(|(generation, blocks)| Placement { generation, blocks });
    prop_oneof![2 => Just(None), 2 => whole.prop_map(Some), 1 => any.prop_map(Some)]
}

fn process_info() -> impl Strategy<Value = ProcessInfo> {
    (0_u64..4, number(), number(), number(), placement(), any::<bool>()).prop_map(
        |(id, devices, heard, generation, computing, draining)| ProcessInfo {
            id,
            rank: None,
            host: "h\n".repeat(heard as usize % 200),
            process: 1,
            devices: devices as usize,
            nanoseconds: heard,
            configuration: BTreeMap::new(),
            holds: StateVersion { generation, step: generation },
            latest_generation: heard,
            computing,
            draining,
            peers: BTreeMap::from([(id, "h\n".repeat(heard as usize % 200))]),
        },
    )
}

fn nonsense() -> impl Strategy<Value = (Event, u64)> {
    let session = || 0_u64..4;
    let text = || Just(String::from("text\nof a stranger"));
    let ready =
        (number(), number(), number(), proptest::option::of(text())).prop_map(|(generation, step, devices, reason)| {
            let holds = StateVersion { generation: step, step };
            Ready { generation, holds, devices: devices as usize, reason }
        });
    let progress = (text(), number()).prop_map(|(activity, step)| Progress {
        activity,
        step,
        images_per_second: f64::NAN,
        waited: [f64::INFINITY; 2],
    });
    let event = prop_oneof![
        4 => (session(), process_info()).prop_map(|(session, who)| Event::Joined(session, who)),
        1 => (session(), progress).prop_map(|(session, progress)| Event::Beat(session, progress)),
        3 => (session(), ready).prop_map(|(session, ready)| Event::Ready(session, ready)),
        1 => (session(), number(), text()).prop_map(|(session, generation, why)| Event::Trouble(session, generation, why)),
        2 => (session(), number()).prop_map(|(session, generation)| Event::Connected(session, generation)),
        1 => session().prop_map(Event::Drain),
        1 => number().prop_map(|rank| Event::DrainRank(rank as usize)),
        1 => (session(), text()).prop_map(|(session, why)| Event::Left(session, Some(why))),
        1 => (session(), text()).prop_map(|(session, why)| Event::Closed(session, why)),
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
            // Of a generation that a restarted service adopts, only those who came back are known.
            let adopts = matches!(&event, Event::Joined(_, who) if who.computing.is_some());
            for action in roster.handle(event, start + Duration::from_millis(now)) {
                let Action::Announce(view) = action else { continue };
                prop_assert!(view.generation >= latest);
                let begins = view.phase == Phase::Running && view.generation > latest;
                prop_assert!(!begins || adopts || view.placement().covers(WORLD));
                latest = view.generation;
            }
        }
    }
}
