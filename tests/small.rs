//! A narrow ResNet-18 on drawn images: the real network, small enough to be trained many times in a test.

use std::ops::Range;

use burn::backend::Autodiff;
use kiln_data::ImageSet;
use kiln_data::synthetic::{NORMALIZATION, Split, draw};
use kiln_engine::nn::{initialize, state_dict};
use kiln_engine::parallel::{HostBackend, Processes, StartingPoint};
use kiln_engine::state::{HostTensor, StateDict};
use kiln_system::Result;
use kiln_training::{ModelConfig, ResNet, Stem};

use crate::reference::run::{Experiment, Recorded, Setup, plan, run_with};
use crate::toy;

const CLASSES: usize = 10;

/// `world_size` replicas with one device each, and a rate that never changes.
pub fn setup(world_size: usize, batch_size: usize, learning_rate: f64) -> Setup {
    toy::setup(world_size, batch_size, learning_rate)
}

/// The drawn images of these ids.
pub fn images(ids: Range<usize>) -> ImageSet {
    let all = draw(Split::Train, ids.end).unwrap();
    let ids: Vec<u32> = ids.map(|id| id as u32).collect();
    let pixels = ids.iter().flat_map(|id| all.image(*id).unwrap().to_vec()).collect();
    let labels = ids.iter().map(|id| all.label(*id)).collect();
    ImageSet::new(pixels, labels, all.classes().to_vec(), all.size()).unwrap()
}

/// One epoch over these images in their order.
pub fn plan_of(setup: &Setup, ids: Range<usize>) -> Experiment {
    plan(setup, images(ids), NORMALIZATION)
}

/// Trains from the weights of seed 0, with the CIFAR stem.
pub fn train<B: HostBackend>(experiment: Experiment) -> Recorded {
    train_with::<B>(&narrow(Stem::Cifar), experiment)
}

/// The network of four channels.
pub fn narrow(stem: Stem) -> ModelConfig {
    ModelConfig { stem, width: 4, ..ModelConfig::default() }
}

/// Trains a network from the weights of seed 0.
pub fn train_with<B: HostBackend>(config: &ModelConfig, experiment: Experiment) -> Recorded {
    try_train::<B>(config, experiment).unwrap()
}

/// As [`train_with`], of what may be refused.
pub fn try_train<B: HostBackend>(config: &ModelConfig, experiment: Experiment) -> Result<Recorded> {
    train_together::<B>(config, experiment, None)
}

/// As [`try_train`], with other processes.
pub fn train_together<B: HostBackend>(
    config: &ModelConfig,
    experiment: Experiment,
    others: Option<Processes>,
) -> Result<Recorded> {
    let device = B::open(0).unwrap();
    let model = initialize(ResNet::<Autodiff<B>>::new(config, CLASSES, 0.0, &device), 0).unwrap();
    run_with::<B>(experiment, config, CLASSES, &state_dict(&model), StartingPoint::default(), others)
}

/// The gradient of the last step: what momentum holds when it forgets all else, and the rate is zero.
pub fn last_gradient<B: HostBackend>(stem: Stem, setup: &Setup, ids: Range<usize>) -> StateDict {
    let mut setup = setup.clone();
    setup.optim.momentum = 1e-30;
    (setup.schedule.base, setup.schedule.peak) = (0.0, 0.0);
    let mut gradient = train_with::<B>(&narrow(stem), plan_of(&setup, ids)).states.pop().unwrap().optimizer;
    gradient.remove("step").expect("the optimizer counts its steps");
    gradient
}

/// `|a - b| / |b|` over all floats of two dictionaries with the same names.
pub fn distance(ours: &StateDict, theirs: &StateDict) -> f64 {
    assert!(ours.keys().eq(theirs.keys()), "other names");
    let floats = |tensor: &HostTensor| tensor.as_f32().map(<[f32]>::to_vec).unwrap_or_default();
    let (mut difference, mut norm) = (0.0, 0.0);
    for (a, b) in ours.values().zip(theirs.values()).flat_map(|(a, b)| floats(a).into_iter().zip(floats(b))) {
        difference += f64::from(a - b).powi(2);
        norm += f64::from(b).powi(2);
    }
    (difference / norm).sqrt()
}
