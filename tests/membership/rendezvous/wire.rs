//! What members and the service tell each other arrives as it was meant.

use std::collections::BTreeMap;

use kiln_membership::rendezvous::membership::{
    MemberStatus, MembershipView, Phase, Placement, ProcessInfo, Progress, Ready, StateVersion,
};
use kiln_membership::rendezvous::placement::Block;
use kiln_membership::rendezvous::wire::{FromMember, Purpose, decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// `it` as the other side decodes it.
fn sent<W: Serialize + DeserializeOwned>(it: &W) -> W {
    decode(&encode(it)).unwrap()
}

fn holds() -> StateVersion {
    StateVersion { generation: 7, step: 1 << 40 }
}

#[test]
fn newcomers_and_their_readiness_survive_the_way() {
    let blocks = vec![Block { id: u64::MAX, devices: 2, replicas: 0..5 }, Block { id: 3, devices: 1, replicas: 5..8 }];
    for computing in [None, Some(Placement { generation: 7, blocks })] {
        let process_info = ProcessInfo {
            id: u64::MAX,
            rank: Some(3),
            host: "node 1".into(),
            process: 4711,
            devices: 2,
            nanoseconds: 1 << 50,
            configuration: BTreeMap::from([("run.seed".into(), "3".into())]),
            holds: holds(),
            latest_generation: 9,
            computing,
            draining: true,
            peers: BTreeMap::from([(u64::MAX, "host b, process 1".into())]),
        };
        assert_eq!(sent(&process_info), process_info);
    }
    for reason in [None, Some("device 1 failed".to_string())] {
        let ready = Ready { generation: 7, holds: holds(), devices: 1, reason };
        assert_eq!(sent(&ready), ready);
    }
}

#[test]
fn views_of_the_membership_survive_the_way() {
    for phase in [Phase::Waiting, Phase::Running, Phase::Ending, Phase::Over, Phase::Complete] {
        let progress =
            Progress { activity: "end of forward".into(), step: 12, images_per_second: 123.5, waited: [1.5, 2.5] };
        let entry = |id, replicas| MemberStatus {
            id,
            host: "node 1".into(),
            process: 12,
            devices: 2,
            replicas,
            draining: id == 2,
            progress: progress.clone(),
        };
        let (why, members) = ("host b joined".to_string(), vec![entry(1, 0..8), entry(2, 0..0)]);
        let blocks = vec![Block { id: 1, devices: 2, replicas: 0..8 }];
        for pending in [None, Some(Placement { generation: 4, blocks })] {
            let view = MembershipView { generation: 3, phase, why: why.clone(), members: members.clone(), pending };
            assert_eq!(sent(&view), view);
        }
    }
}

#[test]
fn a_purpose_of_another_version_is_none() {
    assert!(decode::<Purpose>(&encode(&"Look")).is_ok());
    assert!(decode::<Purpose>(&encode(&"Conquer")).is_err());
}

/// A byte of a value takes a byte, whatever it is: values may be almost as large as a message.
#[test]
fn values_travel_as_they_are() {
    let value = vec![0xff; 1000];
    assert!(encode(&FromMember::Set { id: 0, key: "key".into(), value }).len() < 1020);
}
