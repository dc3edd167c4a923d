//! The full-width network against torchvision's, with weights in both directions.

use std::path::Path;

use burn::backend::Autodiff;
use burn::tensor::{Tensor, TensorData};
use kiln::weights::to_pth;
use kiln_engine::nn::{ForwardContext, initialize, load_state, state_dict};
use kiln_engine::parallel::HostBackend;
use kiln_engine::state::{HostTensor, StateDict, to_safetensors};
use kiln_system::Result;
use kiln_training::{ResNet, recognize};
use tempfile::tempdir;

use crate::python::ask;

fn read(path: &Path) -> Result<StateDict> {
    Ok(kiln::weights::read(path)?.tensors)
}

/// Rows of logits of the images in `directory`, by our network.
fn logits<B: HostBackend>(state: &StateDict, directory: &Path) -> Vec<Vec<f32>> {
    let device = B::open(0).unwrap();
    let (config, classes) = recognize(state, "the test").unwrap();
    let model = load_state(ResNet::<B>::new(&config, classes, 0.0, &device), state, "the test").unwrap();
    let file = read(&directory.join("images.safetensors")).unwrap();
    let HostTensor::F32 { shape, data } = &file["images"] else { panic!("images are floats") };
    let images = Tensor::from_data(TensorData::new(data.clone(), shape.clone()), &device);
    let logits: Vec<f32> = model.forward(images, &ForwardContext::evaluate()).into_data().iter::<f32>().collect();
    logits.chunks(classes).map(<[f32]>::to_vec).collect()
}

#[track_caller]
fn assert_same(ours: &[Vec<f32>], theirs: &[Vec<f32>]) {
    let pairs = ours.iter().flatten().zip(theirs.iter().flatten());
    let [distance, size] =
        pairs.fold([0.0_f32; 2], |[distance, size], (a, b)| [distance.max((a - b).abs()), size.max(b.abs())]);
    assert_eq!((ours.len(), ours[0].len()), (theirs.len(), theirs[0].len()));
    assert!(size > 0.1 && distance <= 1e-4 * size, "off by {distance:e} of {size:e}");
}

fn logits_of_torchvision<B: HostBackend>(name: &str) {
    let directory = tempdir().unwrap();
    let asked = |mode: &str| {
        ask("torch, torchvision", "weights/parity.py", &[Path::new(mode), Path::new(name), directory.path()])
    };
    let Some(theirs) = asked("make") else { return };
    let weights = read(&directory.path().join("weights.pth")).unwrap();
    assert_same(&logits::<B>(&weights, directory.path()), &serde_json::from_str::<Vec<_>>(&theirs).unwrap());
    // And back, with weights of our own.
    let (config, _) = recognize(&weights, "the test").unwrap();
    let drawn = initialize(ResNet::<Autodiff<B>>::new(&config, 10, 0.0, &B::open(0).unwrap()), 3).unwrap();
    let ours = state_dict(&drawn);
    std::fs::write(directory.path().join("ours.safetensors"), to_safetensors(&ours, &[])).unwrap();
    std::fs::write(directory.path().join("ours.pth"), to_pth(&ours, None).unwrap()).unwrap();
    let theirs: Vec<Vec<Vec<f32>>> = serde_json::from_str(&asked("ask").unwrap()).unwrap();
    theirs.iter().for_each(|theirs| assert_same(&logits::<B>(&ours, directory.path()), theirs));
}

on_every_backend! {
    weights_mean_the_same_to_torchvision_in_both_directions => || logits_of_torchvision::<TestBackend>("resnet18");
    weights_of_bottlenecks_mean_the_same_to_torchvision => || logits_of_torchvision::<TestBackend>("resnet50");
    weights_of_groups_mean_the_same_to_torchvision => || logits_of_torchvision::<TestBackend>("narrow_resnext50");
    weights_of_a_deeper_network_mean_the_same_to_torchvision => || logits_of_torchvision::<TestBackend>("resnet34");
}
