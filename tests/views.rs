//! Several views of each image with statistics of their own, against timm; and runs with them, wherever they are
//! computed.

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData};
use kiln_data::synthetic::NORMALIZATION;
use kiln_data::{Augment, DataConfig};
use kiln_engine::nn::{
    AUXILIARY, ForwardContext, flat_gradients, load_state, parameter_names, state_dict, update_running_statistics,
};
use kiln_engine::optim::LossKind;
use kiln_engine::parallel::HostBackend;
use kiln_engine::state::{HostTensor, StateDict, from_safetensors};
use kiln_training::{Loss, ModelConfig, ResNet, Stem};

use crate::command::{Workplace, succeeded};
use crate::python::ask;
use crate::small::{distance, narrow, plan_of, setup, train_with};

/// As in `views.py`.
const CLASSES: usize = 10;
const IMAGES: usize = 4;
const VIEWS: usize = 3;

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

#[track_caller]
fn assert_near(name: &str, ours: &[f32], theirs: &[f32], least: f64) {
    let distance = norm(ours.iter().zip(theirs).map(|(a, b)| a - b));
    let limit = 1e-4 * norm(theirs.iter().copied()) + least;
    assert!(ours.len() == theirs.len() && distance < limit, "{name}: {distance:.2e}, limit {limit:.2e}");
}

fn split_norms_of_timm<B: HostBackend>() {
    let directory = tempfile::tempdir().unwrap();
    let Some(theirs) = ask("timm, torchvision", "weights/views.py", &[directory.path()]) else { return };
    let read = |name: &str| -> StateDict {
        let path = directory.path().join(name).with_extension("safetensors");
        from_safetensors(&std::fs::read(&path).unwrap(), &path).unwrap().0
    };
    let device = B::open(0).unwrap();
    let config = ModelConfig { stem: Stem::Cifar, depth: 50, width: 8, bn_parts: VIEWS, ..ModelConfig::default() };
    let loss = Loss { kind: LossKind::Jsd, smoothing: 0.1, threshold: 0.0 };
    let model = ResNet::<Autodiff<B>>::new(&config, CLASSES, loss, &device);
    let mut start = state_dict(&model);
    // timm averages the statistics of the later parts, too, and uses them nowhere.
    let is_kept = |name: &str| !(name.contains(AUXILIARY) && name.contains("running_"));
    start.extend(read("start").into_iter().filter(|(name, _)| is_kept(name)));
    let model = load_state(model, &start, "the test").unwrap();
    let values = |tensor: &HostTensor| tensor.as_f32().unwrap().to_vec();

    let given = read("images");
    let images = TensorData::new(values(&given["images"]), [VIEWS * IMAGES, 3, 8, 8]);
    let labels: Vec<i32> = values(&given["labels"]).iter().map(|label| *label as i32).collect();
    let labels = Tensor::<Autodiff<B>, 1, Int>::from_data(TensorData::new(labels, [IMAGES]), &device);
    let context = ForwardContext::local();
    let logits = model.forward(Tensor::from_data(images.clone(), &device), &context);
    let losses = model.losses_of(logits.clone(), labels, None);
    assert_eq!((losses.dims(), logits.dims()), ([IMAGES], [VIEWS * IMAGES, CLASSES]));
    let loss = losses.mean();
    let gradients = GradientsParams::from_grads(loss.clone().backward(), &model);
    let (ours, theirs): (f64, f64) = (loss.into_data().iter::<f64>().next().unwrap(), theirs.trim().parse().unwrap());
    assert!((ours / theirs - 1.0).abs() < 1e-5, "loss {ours}, not {theirs}");

    let theirs = read("gradients");
    let whole = norm(theirs.values().flat_map(values));
    let (names, gradients) = (parameter_names(&model), flat_gradients(&model, gradients).unwrap());
    assert_eq!(names.len(), theirs.len());
    assert!(names.iter().any(|name| name == "layer2.0.downsample.1.aux_bn.1.bias"), "{names:?}");
    for (name, gradient) in names.iter().zip(gradients) {
        let mut ours: Vec<f32> = gradient.into_data().iter::<f32>().collect();
        if name == "fc.weight" {
            let inputs = ours.len() / CLASSES;
            ours = (0..ours.len()).map(|i| ours[(i % inputs) * CLASSES + i / inputs]).collect();
        }
        assert_near(name, &ours, &values(&theirs[name]), 1e-6 * whole);
    }

    // Only the first part is averaged, and evaluated.
    let trained = update_running_statistics(model, context.into_statistics());
    let (state, theirs) = (state_dict(&trained), read("end"));
    for (name, tensor) in state.iter().filter(|(name, _)| name.contains("running_")) {
        assert!(!name.contains(AUXILIARY));
        assert_near(name, &values(tensor), &values(&theirs[name]), 1e-6);
    }
    let logits = trained.valid().forward(Tensor::from_data(images, &device), &ForwardContext::evaluate());
    assert_near("logits", &logits.into_data().iter::<f32>().collect::<Vec<_>>(), &values(&theirs["logits"]), 1e-6);
}

/// With synchronised statistics two replicas are as one with the whole batch, also where one of them has no sample. Both
/// after one step: later, rounding may decide whether a unit near zero passes its ReLU.
fn parts_across_replicas<B: HostBackend>() {
    let config = ModelConfig { bn_parts: VIEWS, ..narrow(Stem::Cifar) };
    let data = DataConfig { views: VIEWS, random_erasing: 1.0, cutout: 9, ..DataConfig::default() };
    for images in [8, 1] {
        let trained = |replicas: usize| {
            let mut experiment = plan_of(&setup(replicas, 8 / replicas, 0.01), 0..images);
            experiment.task.augment = Augment::new(&data, NORMALIZATION);
            train_with::<B>(&config, experiment).states.pop().unwrap().weights
        };
        let (one, two) = (trained(1), trained(2));
        assert!(one["bn1.aux_bn.0.weight"] != one["bn1.aux_bn.1.weight"]);
        for of in ["running_", "aux_bn", "conv"] {
            let only = |state: &StateDict| state.clone().into_iter().filter(|(name, _)| name.contains(of)).collect();
            let distance = distance(&only(&two), &only(&one));
            assert!(distance < 1e-6, "{of} of {images} images: {distance:.1e}");
        }
    }
}

on_every_backend! {
    parts_of_several_replicas_are_those_of_one => || parts_across_replicas::<TestBackend>();
    parts_of_a_batch_have_statistics_and_gradients_as_in_timm => || split_norms_of_timm::<TestBackend>();
}

const VIEWED: [&str; 11] = [
    "--epochs=2",
    "data.views=3",
    "data.erase_first_view=false",
    "data.auto_augment=rand-m9-mstd0.5-inc1",
    "--random-erasing=0.6",
    "data.erasing_fill=pixel",
    "--repeated-augmentation=2",
    "model.drop_path=0.5",
    "optim.loss=jsd",
    "model.bn_parts=3",
    "--backend=flex",
];

#[cfg(feature = "flex")]
#[test]
fn a_run_with_views_is_the_same_on_any_number_of_devices_and_after_a_resume() {
    let place = Workplace::new();
    for norm in [&["--sync-bn"][..], &["--no-sync-bn", "parallel.bn_statistics=mean"]] {
        let line = [&VIEWED[..], norm].concat();
        let name = |of: &str| format!("{of}{}", norm.len());
        place.train(&name("one"), &line);
        place.train(&name("two"), &[&line[..], &["--gpu-ids=0,1"]].concat());
        place.train(&name("stages"), &[&line[..], &["--stages=2", "--gpu-ids=0,1"]].concat());
        place.train(&name("cut"), &[&line[..], &["--max-steps=3"]].concat());
        place.train(&name("cut"), &[&line[..], &["--resume"]].concat());
        let tensors = |of: &str| place.run(&name(of)).tensors();
        assert_eq!(tensors("one"), tensors("two"));
        assert_eq!(tensors("one"), tensors("stages"));
        assert_eq!(tensors("one"), tensors("cut"));
        for other in ["data.views=2", "data.erase_first_view=true", "parallel.bn_statistics=first", "model.bn_parts=1"]
        {
            let changed = [&line[..], &["--epochs=3", other, "--resume"]].concat();
            let code = place.small(&name("one"), &changed).output().unwrap().status.code();
            let is_same = norm.len() == 1 && other.starts_with("parallel");
            assert_eq!(code, Some(if is_same { 0 } else { 2 }), "{other}");
        }
    }
    assert_ne!(place.run("one1").tensors(), place.run("one2").tensors());
}

#[cfg(feature = "flex")]
#[test]
fn a_trained_network_has_torchvisions_tensors_and_goes_on_from_others() {
    let place = Workplace::new();
    place.train("run", &[&VIEWED[..], &["--checkpoint=best.pth", "--ema-decay=0.5"]].concat());
    succeeded(
        &place
            .bare(&["export", "--checkpoint=run", "--to=safetensors", "--output=exported.safetensors"])
            .output()
            .unwrap(),
    );
    place.train("plain", &["--epochs=1"]);
    let names = |path: &str| kiln::weights::read(&place.path(path)).unwrap().tensors.into_keys().collect::<Vec<_>>();
    let expected = names("plain/checkpoints/latest/model.safetensors");
    assert_eq!(names("best.pth"), expected);
    assert_eq!(names("exported.safetensors"), expected);
    assert!(names("run/checkpoints/latest/model.safetensors").len() > expected.len());
    succeeded(&place.bare(&["evaluate", "--checkpoint=run", "--output-dir=measured"]).output().unwrap());

    // From weights without parts: each part begins as the first.
    place.train("more", &[&VIEWED[..], &["--pretrained=plain", "--max-steps=1", "--learning-rate=1e-30"]].concat());
    let path = place.path("more/checkpoints/latest/model.safetensors");
    let state = kiln::weights::read(&path).unwrap().tensors;
    let weights = |name: &str| state[name].as_f32().unwrap().to_vec();
    assert_ne!(weights("layer1.0.bn1.weight"), vec![1.0; 4], "it was trained");
    for kind in ["weight", "bias"] {
        let own = weights(&format!("layer1.0.bn1.{kind}"));
        assert_eq!(weights(&format!("layer1.0.bn1.aux_bn.1.{kind}")), own);
    }
}
