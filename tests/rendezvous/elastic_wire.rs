//! What members of an elastic job and the service tell each other arrives as it was meant.

use std::collections::BTreeMap;

use kiln::launch::rendezvous::bulletin::{Assembly, Bulletin, Entry, Newcomer, Phase, Progress, Ready, Standing};
use kiln::launch::rendezvous::elastic_wire as wire;
use kiln::launch::rendezvous::placement::Block;
use prost::Message;

/// `it` as the other side decodes it.
fn sent<W: Message + Default>(it: W) -> W {
    W::decode(it.encode_to_vec().as_slice()).unwrap()
}

fn standing() -> Standing {
    Standing { generation: 7, step: 1 << 40 }
}

#[test]
fn newcomers_and_their_readiness_survive_the_way() {
    let blocks = vec![Block { id: u64::MAX, devices: 2, replicas: 0..5 }, Block { id: 3, devices: 1, replicas: 5..8 }];
    for computing in [None, Some(Assembly { generation: 7, blocks })] {
        let newcomer = Newcomer {
            id: u64::MAX,
            host: "node 1".into(),
            process: 4711,
            devices: 2,
            configuration: BTreeMap::from([("run.seed".into(), "3".into())]),
            standing: standing(),
            heard: 9,
            computing,
            draining: true,
            peers: BTreeMap::from([(u64::MAX, "host b, process 1".into())]),
        };
        assert_eq!(Newcomer::from(sent(wire::Newcomer::from(newcomer.clone()))), newcomer);
    }
    for reason in [None, Some("device 1 failed".to_string())] {
        let ready = Ready { generation: 7, standing: standing(), devices: 1, reason };
        assert_eq!(Ready::from(sent(wire::Ready::from(ready.clone()))), ready);
    }
}

#[test]
fn bulletins_survive_the_way() {
    for phase in [Phase::Waiting, Phase::Running, Phase::Ending, Phase::Over, Phase::Complete] {
        let progress = Progress { activity: "end of forward".into(), step: 12, images_per_second: 123.5 };
        let entry = |id, replicas| Entry {
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
        for prospect in [None, Some(Assembly { generation: 4, blocks })] {
            let bulletin = Bulletin { generation: 3, phase, why: why.clone(), members: members.clone(), prospect };
            assert_eq!(Bulletin::from(sent(wire::Bulletin::from(bulletin.clone()))), bulletin);
        }
    }
}

#[test]
fn a_purpose_of_another_version_is_none() {
    // Field 9 of a visit means nothing yet.
    assert_eq!(wire::Visit::decode([0x48, 1].as_slice()).unwrap().purpose, None);
}
