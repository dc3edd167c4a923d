//! Any events of a job of fixed membership, at any time.

use proptest::prelude::*;

use super::*;

fn events() -> impl Strategy<Value = Vec<Event>> {
    let (rank, place) = (
        0..5_u64,
        (0..4_u64, "\\PC{0,3}").prop_map(|(step, activity)| Progress { activity, step, ..Progress::default() }),
    );
    prop_oneof![
        rank.clone().prop_map(|rank| vec![came(rank)]),
        (rank.clone(), place.clone()).prop_map(|(rank, doing)| vec![Event::Beat(rank, doing)]),
        (rank.clone(), place.clone(), ".{0,5}").prop_map(|(rank, doing, why)| trouble(rank, doing, &why)),
        (rank.clone(), place, proptest::option::of(".{0,5}")).prop_map(|(rank, doing, why)| left(
            rank,
            doing,
            why.as_deref()
        )),
        (rank, ".{0,5}").prop_map(|(rank, how)| vec![Event::Closed(rank, how)]),
        Just(vec![Event::Tick]),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_there_is_one_beginning_one_line_and_one_verdict(
        story in proptest::collection::vec((events(), 0..3000_u64), 0..60),
        begun: bool,
    ) {
        let mut court = if begun { Court::at_work() } else { Court::empty() };
        let mut beginnings = usize::from(begun);
        for (events, later) in story {
            court.now += later;
            let came = matches!(events[..], [Event::Joined(..)]);
            for action in court.hear(events) {
                if let Some(hosts) = roll(&action) {
                    beginnings += 1;
                    prop_assert_eq!(hosts, ["host0", "host1", "host2"]);
                }
                match action {
                    Action::Welcome | Action::Refuse(_) => prop_assert!(came),
                    Action::Decide(text) => prop_assert!(!text.contains(char::is_control)),
                    Action::Announce(_) => {}
                }
            }
        }
        prop_assert!(beginnings <= 1);
    }

    #[test]
    fn silence_of_one_is_noticed_in_time_whenever_it_begins(calm in 0..40_u64, silent in 0..3_u64) {
        let mut court = Court::at_work();
        court.pass(calm * 250, &[(0, 1), (1, 1), (2, 1)]);
        prop_assert_eq!(&court.verdict, &None);
        let others: Vec<_> = (0..3).filter(|rank| *rank != silent).map(|rank| (rank, 1)).collect();
        court.pass(TIMEOUT + 500, &others);
        let verdict = court.verdict.unwrap();
        let expected = format!("rank {silent} (");
        prop_assert!(verdict.starts_with(&expected), "{}", verdict);
    }
}
