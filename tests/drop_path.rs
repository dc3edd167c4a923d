//! Stochastic depth: factors of residual branches in the network, and how they are drawn.

use std::sync::Arc;

use burn::backend::Autodiff;
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use kiln_data::{DataConfig, Source, load};
use kiln_engine::nn::{ForwardContext, flat_gradients, initialize, load_state, parameter_names, state_dict};
use kiln_engine::parallel::{HostBackend, Shard, Split, fetch};
use kiln_engine::state::HostTensor;
use kiln_training::{Architecture, Classification, ModelConfig, ResNet, Stem, Through, Units};

const BLOCKS: usize = 8;
const IMAGES: usize = 3;

fn config() -> ModelConfig {
    ModelConfig { stem: Stem::Cifar, width: 4, ..ModelConfig::default() }
}

/// Logits, and the gradient of the sum of their squares by parameter.
fn passed<B: HostBackend>(model: &ResNet<Autodiff<B>>, factors: Option<&[f32]>) -> (Vec<f32>, Vec<(String, Vec<f32>)>) {
    let device = B::open(0).unwrap();
    let pixels: Vec<f32> = (0..IMAGES * 3 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
    let images = Tensor::from_data(TensorData::new(pixels, [IMAGES, 3, 8, 8]), &device);
    let branches =
        factors.map(|factors| Tensor::from_data(TensorData::new(factors.to_vec(), [IMAGES, BLOCKS]), &device));
    let all = Units { range: 0..model.units(), image: [8, 8] };
    let Through::Logits(logits) = model.forward_units(&all, images, branches, &ForwardContext::local()) else {
        panic!("the whole network has logits")
    };
    let gradients = logits.clone().powi_scalar(2).sum().backward();
    let gradients = flat_gradients(model, GradientsParams::from_grads(gradients, model)).unwrap();
    let gradients = gradients.into_iter().map(|it| it.into_data().iter::<f32>().collect());
    (logits.into_data().iter::<f32>().collect(), parameter_names(model).into_iter().zip(gradients).collect())
}

#[track_caller]
fn assert_near(what: &str, ours: &[f32], theirs: &[f32]) {
    let largest = theirs.iter().fold(1e-3_f32, |most, value| most.max(value.abs()));
    let close = ours.iter().zip(theirs).all(|(one, other)| (one - other).abs() < 2e-4 * largest);
    assert!(close && ours.len() == theirs.len(), "{what}: {ours:?} and not {theirs:?}");
}

/// A factor of a branch is one of the weight and bias of its last batch-norm.
fn factors_scale_branches<B: HostBackend>() {
    let device = B::open(0).unwrap();
    let model = initialize(ResNet::<Autodiff<B>>::new(&config(), 5, 0.0, &device), 3).unwrap();
    let (plain, slopes) = passed(&model, None);
    let (ours, ones) = passed(&model, Some(&[1.0; IMAGES * BLOCKS]));
    assert_near("ones", &ours, &plain);
    for ((name, one), (_, other)) in ones.iter().zip(&slopes) {
        assert_near(name, one, other);
    }
    for (block, module, factor) in [(0, "layer1.0", 0.0), (3, "layer2.1", 2.5), (7, "layer4.1", 0.5)] {
        let mut factors = [1.0; IMAGES * BLOCKS];
        (0..IMAGES).for_each(|image| factors[image * BLOCKS + block] = factor);
        let (ours, own) = passed(&model, Some(&factors));
        let mut state = state_dict(&model);
        let last = [format!("{module}.bn2.weight"), format!("{module}.bn2.bias")];
        for name in &last {
            let HostTensor::F32 { data, .. } = state.get_mut(name).unwrap() else { panic!("{name}") };
            // Weights of one and biases of zero would hide a bias that is not scaled.
            data.iter_mut().enumerate().for_each(|(i, value)| *value += 0.1 * (i as f32 + 1.0));
        }
        let shifted = load_state(model.clone(), &state, "the test").unwrap();
        let (ours_shifted, _) = passed(&shifted, Some(&factors));
        for name in &last {
            let HostTensor::F32 { data, .. } = state.get_mut(name).unwrap() else { panic!("{name}") };
            data.iter_mut().for_each(|value| *value *= factor);
        }
        let (theirs_shifted, _) = passed(&load_state(model.clone(), &state, "the test").unwrap(), None);
        assert_near(&format!("{module} by {factor}, shifted"), &ours_shifted, &theirs_shifted);
        // As it was initialised: only the weight is not zero.
        let mut state = state_dict(&model);
        let HostTensor::F32 { data, .. } = state.get_mut(&last[0]).unwrap() else { panic!() };
        data.iter_mut().for_each(|value| *value *= factor);
        let (theirs, other) = passed(&load_state(model.clone(), &state, "the test").unwrap(), None);
        assert_near(&format!("{module} by {factor}"), &ours, &theirs);
        for ((name, one), (_, other)) in own.iter().zip(&other) {
            // The chain rule at the scaled parameters.
            let scale = if last.contains(name) { factor } else { 1.0 };
            let other: Vec<f32> = other.iter().map(|value| value * scale).collect();
            assert_near(&format!("{name} with {module} by {factor}"), one, &other);
        }
    }
    // One image alone.
    let mut factors = [1.0; IMAGES * BLOCKS];
    factors[BLOCKS..2 * BLOCKS].fill(0.0);
    let (ours, _) = passed(&model, Some(&factors));
    assert!(ours[5..10] != plain[5..10], "the second image skips all branches");
}

on_every_backend! {
    a_factor_of_a_branch_is_one_of_its_last_batch_norm => || factors_scale_branches::<TestBackend>();
}

#[test]
fn branches_are_left_out_as_often_as_their_depth_says() {
    let data = DataConfig { source: Source::Synthetic, train_size: 4000, ..DataConfig::default() };
    let splits = load(&data, &|_| {}).unwrap();
    let task = |drop_path| Classification::new(&data, &splits, Architecture::RESNET18, 7).with_drop_path(drop_path);
    let prepared = |task: &Classification, epoch: usize, ids: Vec<u32>, split: Split| {
        let shard = Shard { epoch, first: ids[0], ids, ..Shard::default() };
        let images = Arc::clone(if split == Split::Training { &task.train } else { &task.validation });
        let pictures = fetch(&*images, &shard.ids).unwrap();
        task.assemble(split, pictures, &shard).unwrap().branches
    };
    let all: Vec<u32> = (0..4000).collect();
    let half = task(0.5);
    let drawn = prepared(&half, 0, all.clone(), Split::Training);
    for block in 0..BLOCKS {
        let kept_rate = 1.0 - 0.5 * block as f32 / 7.0;
        let of_block: Vec<f32> = drawn.iter().skip(block).step_by(BLOCKS).copied().collect();
        let kept = of_block.iter().filter(|factor| **factor > 0.0).count() as f32 / 4000.0;
        // Four standard deviations.
        assert!(
            (kept - kept_rate).abs() < 4.0 * (kept_rate * (1.0 - kept_rate) / 4000.0).sqrt() + 1e-6,
            "{block}: {kept}"
        );
        assert!(of_block.iter().all(|factor| *factor == 0.0 || (factor * kept_rate - 1.0).abs() < 1e-6));
    }
    // Whichever replica has an image draws the same; another epoch draws anew.
    assert_eq!(prepared(&half, 0, vec![9, 17], Split::Training), [&drawn[72..80], &drawn[136..144]].concat());
    assert_ne!(prepared(&half, 1, all, Split::Training), drawn);
    assert!(prepared(&half, 0, vec![3], Split::Validation).is_empty());
    assert!(prepared(&task(0.0), 0, vec![3], Split::Training).is_empty());
}
