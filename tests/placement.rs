//! The world belongs to the experiment, the devices to the machine: the same replicas on other devices give the same
//! weights.

use kiln_engine::parallel::{HostBackend, World};
use kiln_engine::state::{StateDict, sha256};

use crate::reference::run::{Experiment, Setup};
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
fn outcome<B: HostBackend>(experiment: Experiment) -> StateDict {
    let state = train::<B>(experiment).states.pop().unwrap();
    let named =
        |kind: &'static str, state: StateDict| state.into_iter().map(move |(name, it)| (format!("{kind} {name}"), it));
    let average = state.average.expect("averaging is on");
    named("model", state.weights).chain(named("optimizer", state.optimizer)).chain(named("average", average)).collect()
}

pub fn devices_change_no_bit<B: HostBackend>() {
    let on = |counts: &[usize]| {
        let mut experiment = plan_of(&four_replicas(counts.len()), 0..IMAGES);
        let devices = experiment.plan.world.devices.clone();
        experiment.plan.world = World::counted(1, 0, &[devices.len()], devices, counts);
        sha256(&outcome::<B>(experiment))
    };
    let one = on(&[4]);
    for counts in [&[2, 2][..], &[3, 1], &[1, 3], &[1, 2, 1], &[1, 1, 1, 1]] {
        assert_eq!(on(counts), one, "{counts:?}");
    }
}

/// To rounding in the first step. Then a unit near zero may pass its ReLU in one world and not in another: with other
/// images the weights differ by up to 2.7e-3 after three steps, also with convolutions by the definition.
pub fn worlds_agree<B: HostBackend>() {
    let world = |replicas: usize| {
        let mut setup = four_replicas(1);
        (setup.world_size, setup.batch_size) = (replicas, 32 / replicas);
        let mut experiment = plan_of(&setup, 0..IMAGES);
        experiment.plan.save_every_steps = 1;
        train::<B>(experiment).states
    };
    let one = world(1);
    for replicas in [2, 4] {
        let states = world(replicas);
        for (step, bound) in [(0, 1e-6), (2, 1e-2)] {
            let distance = distance(&states[step].weights, &one[step].weights);
            assert!(distance < bound, "{replicas} replicas: {distance:.1e} from one after step {}", step + 1);
        }
    }
}

on_every_backend! {
    the_devices_that_host_four_replicas_change_no_bit => || devices_change_no_bit::<TestBackend>();
    one_two_and_four_replicas_agree_on_the_same_global_batch => || worlds_agree::<TestBackend>();
}
