//! Training on mixed images: the loss of two labels, and runs that are the same wherever they are computed.

use burn::backend::Autodiff;
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData};
use kiln_engine::nn::{ForwardContext, cross_entropy, flat_gradients, initialize};
use kiln_engine::optim::LossKind;
use kiln_engine::parallel::HostBackend;
use kiln_training::{Loss, ModelConfig, ResNet, Stem};

use crate::python::ask;

const CLASSES: usize = 7;
const SMOOTHING: f64 = 0.1;

/// Loss and bias gradient of the classifier against the targets as probabilities, by their formulas in f64.
fn by_formula(logits: &[f32], targets: &[[f64; CLASSES]]) -> (f64, [f64; CLASSES]) {
    let (mut loss, mut gradient) = (0.0, [0.0; CLASSES]);
    for (row, target) in logits.chunks(CLASSES).zip(targets) {
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        for class in 0..CLASSES {
            let probability = f64::from(row[class]).exp() / sum;
            let smooth = target[class] * (1.0 - SMOOTHING) + SMOOTHING / CLASSES as f64;
            loss -= smooth * probability.ln();
            gradient[class] += probability - smooth;
        }
    }
    (loss, gradient)
}

fn loss_of_two_labels<B: HostBackend>() {
    let device = B::open(0).unwrap();
    let config = ModelConfig { stem: Stem::Cifar, width: 4, ..ModelConfig::default() };
    let model = initialize(ResNet::<Autodiff<B>>::new(&config, CLASSES, SMOOTHING, &device), 5).unwrap();
    let (own, others, share) = ([1, 4, 6], [6, 4, 1], 0.3);
    let pixels: Vec<f32> = (0..3 * 3 * 64).map(|i| (i as f32 * 0.11).cos()).collect();
    let labels =
        |labels: [i32; 3]| Tensor::<Autodiff<B>, 1, Int>::from_data(TensorData::new(labels.to_vec(), [3]), &device);
    let images = Tensor::from_data(TensorData::new(pixels, [3, 3, 8, 8]), &device);
    let logits = model.forward(images, &ForwardContext::local());
    let losses = model.losses_of(logits.clone(), labels(own), Some((labels(others), share)));
    let gradients = GradientsParams::from_grads(losses.clone().sum().backward(), &model);
    let mut targets = [[0.0; CLASSES]; 3];
    for (image, target) in targets.iter_mut().enumerate() {
        target[own[image] as usize] += share;
        target[others[image] as usize] += 1.0 - share;
    }
    let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
    let (loss, gradient) = by_formula(&logits, &targets);
    let ours: f64 = losses.into_data().iter::<f64>().sum();
    assert!((ours / loss - 1.0).abs() < 1e-5, "{ours} and not {loss}");
    let ours = flat_gradients(&model, gradients).unwrap().pop().unwrap();
    let ours: Vec<f32> = ours.into_data().iter::<f32>().collect();
    let close = ours.iter().zip(gradient).all(|(ours, theirs)| (f64::from(*ours) - theirs).abs() < 1e-5);
    assert!(close, "{ours:?} and not {gradient:?}");
}

/// Losses and gradients of the logits are those of timm's `BinaryCrossEntropy` and `mixup_target`.
fn bce_of_timm<B: HostBackend>() {
    let Some(found) = ask("timm", "timm_losses.py", &[]) else { return };
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<f32> { serde_json::from_value(value.clone()).unwrap() };
    let device = B::open(0).unwrap();
    let labels = |name: &str| {
        let labels: Vec<i32> = serde_json::from_value(found[name].clone()).unwrap();
        Tensor::<Autodiff<B>, 1, Int>::from_data(TensorData::new(labels, [4]), &device)
    };
    let config = ModelConfig { stem: Stem::Cifar, width: 4, ..ModelConfig::default() };
    for case in found["cases"].as_array().unwrap() {
        let [smoothing, threshold, share] =
            ["smoothing", "threshold", "share"].map(|name| case[name].as_f64().unwrap());
        let loss = Loss { kind: LossKind::Bce, smoothing, threshold };
        let model = ResNet::<Autodiff<B>>::new(&config, 5, loss, &device);
        let logits = Tensor::<Autodiff<B>, 2>::from_data(TensorData::new(numbers(&found["logits"]), [4, 5]), &device);
        let logits = logits.require_grad();
        let mixed = (share < 1.0).then(|| (labels("others"), share));
        let losses = model.losses_of(logits.clone(), labels("own"), mixed);
        let gradient = logits.grad(&losses.clone().sum().backward()).unwrap();
        let pairs = [(losses.into_data(), "losses"), (gradient.into_data(), "gradient")];
        for (ours, name) in pairs {
            let ours: Vec<f32> = ours.iter::<f32>().collect();
            let close = ours.iter().zip(numbers(&case[name])).all(|(ours, theirs)| (ours - theirs).abs() < 2e-6);
            assert!(close && !ours.is_empty(), "{name} of {case}: {ours:?}");
        }
    }
}

/// Losses and gradients of three views of each image are those of timm's `JsdCrossEntropy`.
fn jsd_of_timm<B: HostBackend>() {
    let Some(found) = ask("timm", "timm_losses.py", &[]) else { return };
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<f32> { serde_json::from_value(value.clone()).unwrap() };
    let device = B::open(0).unwrap();
    let labels: Vec<i32> = serde_json::from_value(found["own"].clone()).unwrap();
    let labels = Tensor::<Autodiff<B>, 1, Int>::from_data(TensorData::new(labels, [4]), &device);
    let config = ModelConfig { stem: Stem::Cifar, width: 4, ..ModelConfig::default() };
    for case in found["views"].as_array().unwrap() {
        let smoothing = case["smoothing"].as_f64().unwrap();
        let losses_by = |kind| {
            let model = ResNet::<Autodiff<B>>::new(&config, 5, Loss { kind, smoothing, threshold: 0.0 }, &device);
            let logits = TensorData::new(numbers(&case["logits"]), [12, 5]);
            let logits = Tensor::<Autodiff<B>, 2>::from_data(logits, &device).require_grad();
            let losses = model.losses_of(logits.clone(), labels.clone(), None);
            let gradient = logits.grad(&losses.clone().sum().backward()).unwrap();
            [losses.into_data(), gradient.into_data()].map(|data| data.iter::<f32>().collect::<Vec<_>>())
        };
        for (ours, name) in losses_by(LossKind::Jsd).iter().zip(["losses", "gradient"]) {
            let theirs = numbers(&case[name]);
            let largest = theirs.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
            let close = ours.iter().zip(&theirs).all(|(ours, theirs)| (ours - theirs).abs() < 4e-6 * largest);
            assert!(close && ours.len() == theirs.len(), "{name} of {case}: {ours:?}");
        }
        // Any other loss is the mean over the views.
        let rows = Tensor::<Autodiff<B>, 2>::from_data(TensorData::new(numbers(&case["logits"]), [12, 5]), &device);
        let each = cross_entropy(rows, labels.clone().repeat_dim(0, 3), smoothing).into_data();
        let each: Vec<f32> = each.iter::<f32>().collect();
        let [ours, _] = losses_by(LossKind::CrossEntropy);
        let means = (0..4).map(|image| (each[image] + each[4 + image] + each[8 + image]) / 3.0);
        assert!(ours.iter().zip(means).all(|(ours, mean)| (ours - mean).abs() <= 2e-6 * mean.max(1.0)), "{ours:?}");
    }
}

on_every_backend! {
    the_loss_of_several_views_is_that_of_timm => || jsd_of_timm::<TestBackend>();
    the_binary_cross_entropy_is_that_of_timm => || bce_of_timm::<TestBackend>();
    the_loss_of_two_labels_is_that_of_their_mixture => || loss_of_two_labels::<TestBackend>();
}
