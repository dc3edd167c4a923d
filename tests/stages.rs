//! Stages are a placement: the model of a replica in parts on several devices or processes gives the same numbers.

use kiln_engine::parallel::{HostBackend, World};
use kiln_engine::state::{StateDict, sha256};
use kiln_training::{ModelConfig, Stem};

use crate::reference::run::{Experiment, Recorded};
use crate::small::{distance, narrow, plan_of, setup, train_with};

/// Two steps of three micro-batches, the last one uneven.
const IMAGES: usize = 43;

fn recorded<B: HostBackend>(model: &ModelConfig, placement: [usize; 3]) -> Recorded {
    train_with::<B>(model, experiment(placement))
}

/// Of replicas, stages and devices.
pub fn experiment([replicas, stages, devices]: [usize; 3]) -> Experiment {
    let mut setup = setup(replicas, 8 / replicas, 0.05);
    setup.accumulation_steps = 3;
    setup.optim.ema_decay = 0.9;
    setup.optim.clip_grad_norm = 0.5;
    let mut experiment = plan_of(&setup, 0..IMAGES);
    // LibTorch adds up in another order on another number of threads.
    experiment.plan.threads = 1;
    experiment.plan.world = World::staged([replicas, stages], 0, vec![devices], (0..devices).collect());
    experiment
}

/// Everything that the steps change: weights, running statistics, momentum, average.
pub fn outcome(mut recorded: Recorded) -> StateDict {
    let state = recorded.states.pop().unwrap();
    let average = state.average.expect("averaging is on");
    let kinds = [("model", state.weights), ("optimizer", state.optimizer), ("average", average)];
    let named = |(kind, state): (&'static str, StateDict)| {
        state.into_iter().map(move |(name, it)| (format!("{kind} {name}"), it))
    };
    kinds.into_iter().flat_map(named).collect()
}

/// Losses, norms and validation too.
pub fn reports(recorded: &Recorded) -> Vec<f64> {
    let steps = recorded.steps.iter().flat_map(|step| [step.counts.loss, step.gradient_norm]);
    steps.chain(recorded.epochs.iter().map(|epoch| epoch.validation.loss)).collect()
}

/// On a processor; a GPU's backend fuses operations where they meet, so there the stages agree to rounding.
pub fn change_no_bit<B: HostBackend>() {
    change_no_bit_of::<B>(&narrow(Stem::Cifar), &[1, 2]);
}

/// Bottlenecks with groups, cut among them.
fn change_no_bit_of_bottlenecks<B: HostBackend>() {
    let model = ModelConfig { depth: 50, groups: 4, width_per_group: 16, ..narrow(Stem::Cifar) };
    change_no_bit_of::<B>(&model, &[2]);
}

fn change_no_bit_of<B: HostBackend>(model: &ModelConfig, replicas: &[usize]) {
    for replicas in replicas.iter().copied() {
        let whole = recorded::<B>(model, [replicas, 1, 1]);
        let (numbers, whole) = (reports(&whole), outcome(whole));
        for [stages, devices] in [[2, 2], [3, 1], [10, 3]] {
            let placed = recorded::<B>(model, [replicas, stages, devices]);
            let what = format!("{replicas} replicas in {stages} stages");
            if B::is_processor() {
                assert_eq!(reports(&placed), numbers, "{what}");
                assert_eq!(sha256(&outcome(placed)), sha256(&whole), "{what}");
            } else {
                let distance = distance(&outcome(placed), &whole);
                assert!(distance < 1e-5, "{what}: {distance:.1e} from one");
            }
        }
    }
}

on_every_backend! {
    the_stages_of_a_model_change_no_bit => || change_no_bit::<TestBackend>();
    the_stages_of_bottlenecks_change_no_bit => || change_no_bit_of_bottlenecks::<TestBackend>();
}
