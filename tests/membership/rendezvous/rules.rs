//! The rules of an elastic job.

use std::collections::BTreeMap;
use std::time::Duration;

use kiln_membership::rendezvous::membership::Rules;

#[test]
fn the_rules_of_an_elastic_job_are_those_of_its_first_member() {
    let mut configuration: BTreeMap<String, String> = [
        ("parallel.world_size", "4"),
        ("parallel.stages", "2"),
        ("parallel.elastic", "2:"),
        ("parallel.heartbeat", "0.5"),
        ("parallel.lost_after", "2.5"),
        ("parallel.elastic_timeout", "1e300"),
        ("parallel.timeout", "30"),
    ]
    .map(|(key, value)| (key.into(), value.into()))
    .into();
    let rules = Rules::read(&configuration).expect("all keys are there");
    assert_eq!((rules.min, rules.max, rules.world, rules.strict), (2, 8, 8, false));
    assert_eq!((rules.beat, rules.lost_after), (Duration::from_millis(500), Duration::from_millis(2500)));
    assert_eq!((rules.settle, rules.ready_timeout), (Duration::from_millis(200), Duration::from_secs(300)));
    // Endless, and yet several of them can be added up.
    assert!(rules.elastic_timeout > Duration::from_secs(1 << 50) && rules.elastic_timeout < Duration::MAX / 50);
    configuration.insert("parallel.elastic".into(), "off".into());
    assert!(Rules::read(&configuration).expect_err("it is fixed").reason.contains("serves elastic jobs"));
    configuration.remove("parallel.heartbeat");
    configuration.insert("parallel.elastic".into(), "2:3".into());
    assert!(Rules::read(&configuration).expect_err("a key is missing").reason.contains("no usable parallel.heartbeat"));
}
