//! Names as wrappers leave them: every command gets those of torchvision.

use kiln::weights::Weights;
use kiln_engine::state::{StateDict, to_safetensors};
use tempfile::tempdir;

use super::{assert_line, count, state, tensor};

fn network() -> StateDict {
    state([
        ("conv1.weight", tensor(&[2, 3, 3, 3], 1.0)),
        ("bn1.running_mean", tensor(&[2], 2.0)),
        ("bn1.num_batches_tracked", count(7)),
        ("layer1.0.conv1.weight", tensor(&[2, 2, 3, 3], 3.0)),
        ("fc.weight", tensor(&[5, 16], 4.0)),
    ])
}

fn prefixed(prefix: &str) -> StateDict {
    network().into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect()
}

/// What is read of a file with these tensors.
fn read(tensors: &StateDict) -> Result<Weights, String> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("their.safetensors");
    std::fs::write(&path, to_safetensors(tensors, &[])).unwrap();
    kiln::weights::read(&path).map_err(|error| error.to_string())
}

#[test]
fn whatever_stands_before_the_names_of_the_network_is_removed() {
    let wrappers = ["", "module.", "_orig_mod.", "model.", "net.", "backbone.", "encoder.", "resnet.", "model.resnet."];
    let nested = ["module._orig_mod.", "_orig_mod.module.", "model.net.", "1.", "backbone.body.", "any.other.name."];
    for prefix in wrappers.into_iter().chain(nested) {
        let found = read(&prefixed(prefix)).unwrap();
        assert_eq!((found.tensors, found.left_out.len()), (network(), 0), "{prefix}");
    }
}

#[test]
fn what_stands_beside_the_network_is_left_out_by_name_but_its_classifier() {
    let mut from = prefixed("backbone.");
    from.insert("n_averaged".into(), count(3));
    from.insert("criterion.weight".into(), tensor(&[5], 0.0));
    let head = from.remove("backbone.fc.weight").unwrap();
    from.insert("fc.weight".into(), head);
    let found = read(&from).unwrap();
    assert_eq!(found.tensors, network());
    assert_eq!(found.left_out, ["criterion.weight", "n_averaged"]);
    // Without a prefix everything may be a part of the network.
    let mut from = network();
    from.insert("model.extra".into(), count(1));
    assert_eq!(read(&from).unwrap().tensors, from);
}

#[test]
fn two_networks_or_a_name_with_and_without_its_prefix_are_refused() {
    let two = [prefixed("student."), prefixed("teacher.")].into_iter().flatten().collect();
    assert_line(&read(&two).unwrap_err(), &["2 networks", "'student.', 'teacher.'", "save the state_dict of one"]);
    let mut twice = prefixed("model.");
    twice.insert("conv1.weight".into(), tensor(&[2, 3, 3, 3], 0.0));
    assert_line(&read(&twice).unwrap_err(), &["'conv1.weight'", "'model.'"]);
}

#[test]
fn counts_of_batches_that_old_files_lack_are_0_as_in_pytorch() {
    let mut old = prefixed("module.");
    old.remove("module.bn1.num_batches_tracked");
    let mut expected = network();
    expected.insert("bn1.num_batches_tracked".into(), count(0));
    assert_eq!(read(&old).unwrap().tensors, expected);
}
