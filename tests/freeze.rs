//! Transfer learning: what is frozen keeps every bit, what is left trains as if the frozen part were a function.

use std::sync::Arc;

use burn::backend::Autodiff;
use burn::optim::GradientsParams;
use burn::tensor::activation::softmax;
use burn::tensor::{Int, Tensor, TensorData};
use kiln_engine::nn::{ForwardContext, TensorSet, flat_gradients, freeze, initialize, parameter_names};
use kiln_engine::parallel::HostBackend;
use kiln_ops::statistics::{Combine, Direction, StatisticsGroup};
use kiln_training::{ModelConfig, ResNet, Stem, count_parameters};

use crate::reference::features;

const CLASSES: usize = 10;

fn model<B: HostBackend>(pattern: &str) -> kiln_system::Result<ResNet<Autodiff<B>>> {
    let config = ModelConfig { stem: Stem::Cifar, width: 4, ..ModelConfig::default() };
    freeze(initialize(ResNet::new(&config, CLASSES, 0.0, &B::open(0)?), 0)?, pattern)
}

/// Whoever asks it fails.
struct Nobody;

impl StatisticsGroup for Nobody {
    fn gather(&self, layer: usize, _: Direction, _: Vec<f64>, _: Combine) -> Arc<Vec<Vec<f64>>> {
        panic!("a frozen layer {layer} asks the other replicas");
    }
}

/// The gradients of the classifier are those of a linear model on the features of the frozen network.
fn frozen_gradients<B: HostBackend>() {
    let model = model::<B>("backbone").unwrap();
    let device = B::open(0).unwrap();
    let pixels: Vec<f32> = (0..4 * 3 * 8 * 8).map(|i| (i as f32 * 0.37).sin()).collect();
    let images = Tensor::<B, 4>::from_data(TensorData::new(pixels, [4, 3, 8, 8]), &device);
    let labels: [i32; 4] = [1, 7, 0, 3];
    let targets = Tensor::<Autodiff<B>, 1, Int>::from_data(TensorData::new(labels.to_vec(), [4]), &device);
    let context = ForwardContext::synchronized(Arc::new(Nobody), [4].into(), 0);
    let losses = model.losses_of(model.forward(Tensor::from_inner(images.clone()), &context), targets, None);
    let gradients = GradientsParams::from_grads((losses.sum() * 0.25).backward(), &model);
    assert!(context.into_statistics().is_empty(), "nothing for running statistics");
    let ours = flat_gradients(&model, gradients).unwrap();
    let inner = burn::module::AutodiffModule::valid(&model);
    let features = features(&inner, images.clone());
    let probabilities = softmax(inner.forward(images, &ForwardContext::evaluate()), 1);
    let one_hot = Tensor::<B, 1, Int>::from_data(TensorData::new(labels.to_vec(), [4]), &device).one_hot::<2>(CLASSES);
    let error = (probabilities - one_hot.float()) * 0.25;
    let expected = [features.transpose().matmul(error.clone()).flatten::<1>(0, 1), error.sum_dim(0).flatten(0, 1)];
    assert_eq!(ours.len(), 2, "only the classifier has gradients");
    for (ours, expected) in ours.into_iter().zip(expected) {
        let size: f32 = expected.clone().abs().max().into_scalar_f32();
        let distance: f32 = (ours - expected).abs().max().into_scalar_f32();
        assert!(size > 1e-3 && distance < 1e-5 * size, "off by {distance:e} of {size:e}");
    }
}

trait Scalar {
    fn into_scalar_f32(self) -> f32;
}

impl<B: burn::tensor::backend::Backend> Scalar for Tensor<B, 1> {
    fn into_scalar_f32(self) -> f32 {
        self.into_data().iter::<f32>().next().unwrap()
    }
}

on_every_backend! {
    a_frozen_backbone_is_a_function_and_asks_nobody => || frozen_gradients::<TestBackend>();
}

#[cfg(feature = "flex")]
#[test]
fn patterns_name_modules_and_tensors() {
    type B = burn::backend::Flex;
    let trained = |pattern: &str| parameter_names(&model::<B>(pattern).unwrap());
    let all = trained("none");
    assert_eq!(trained("backbone"), ["fc.weight", "fc.bias"]);
    let without = |prefixes: &[&str]| -> Vec<String> {
        all.iter().filter(|name| !prefixes.iter().any(|prefix| name.starts_with(prefix))).cloned().collect()
    };
    assert_eq!(trained("conv1,bn1,layer1"), without(&["conv1", "bn1", "layer1."]));
    assert_eq!(trained("layer*.0"), without(&["layer1.0.", "layer2.0.", "layer3.0.", "layer4.0."]));
    assert_eq!(trained("fc.bias").len(), all.len() - 1);
    assert_eq!(trained("layer4.1.bn2.weight").len(), all.len() - 1);
    let count = count_parameters(&model::<B>("backbone").unwrap());
    assert_eq!(count.trained, 32 * CLASSES + CLASSES);
    let everything = count_parameters(&model::<B>("none").unwrap());
    assert_eq!((count.all, everything.all), (everything.trained, everything.trained));
    for (pattern, rule) in [("layer9", "names no trained tensor"), ("layer", "names no"), ("*", "nothing to train")] {
        let error = model::<B>(pattern).unwrap_err().to_string();
        assert!(error.contains(rule) && error.contains("--freeze") && error.lines().count() == 1, "{error}");
    }
    assert_eq!(kiln_engine::nn::flat(&model::<B>("backbone").unwrap(), TensorSet::Trained).len(), 2);
}
