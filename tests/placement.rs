//! The world belongs to the experiment, the devices to the machine: the same replicas on other devices give the same
//! weights.

use kiln_engine::parallel::HostBackend;
use kiln_engine::state::{StateDict, sha256};

use crate::reference::run::Setup;
use crate::small::{distance, plan_of, setup, train};

/// Three steps over 96 images.
const IMAGES: usize = 96;

fn four_replicas(devices: usize) -> Setup {
    let mut setup = setup(4, 8, 0.05);
    setup.devices = (0..devices).collect();
    setup.optim.ema_decay = 0.9;
    setup
}

/// Everything that three steps change: weights, running statistics, momentum, average.
fn outcome<B: HostBackend>(setup: &Setup) -> StateDict {
    let state = train::<B>(plan_of(setup, 0..IMAGES)).states.pop().unwrap();
    let named =
        |kind: &'static str, state: StateDict| state.into_iter().map(move |(name, it)| (format!("{kind} {name}"), it));
    let average = state.average.expect("averaging is on");
    named("model", state.weights).chain(named("optimizer", state.optimizer)).chain(named("average", average)).collect()
}

pub fn devices_change_no_bit<B: HostBackend>() {
    let [one, two, four] = [1, 2, 4].map(|devices| sha256(&outcome::<B>(&four_replicas(devices))));
    assert_eq!(one, two, "one device or two");
    assert_eq!(one, four, "one device or four");
}

/// To rounding, that is: momentum would show more of it, as it holds differences of large numbers.
pub fn worlds_agree<B: HostBackend>() {
    let world = |replicas: usize| {
        let mut setup = four_replicas(1);
        (setup.world_size, setup.batch_size) = (replicas, 32 / replicas);
        train::<B>(plan_of(&setup, 0..IMAGES)).states.pop().unwrap().weights
    };
    let one = world(1);
    for replicas in [2, 4] {
        let distance = distance(&world(replicas), &one);
        assert!(distance < 1e-4, "{replicas} replicas: {distance:.1e} from one");
    }
}

on_every_backend! {
    the_devices_that_host_four_replicas_change_no_bit => || devices_change_no_bit::<TestBackend>();
    one_two_and_four_replicas_agree_on_the_same_global_batch => || worlds_agree::<TestBackend>();
}
