//! Foreign weights in a fresh model: what fits is taken, what does not is told.

use kiln::weights::{Report, transplant};
use kiln_engine::state::StateDict;
use kiln_system::Error;

use super::{assert_line, count, state, tensor};

/// A model in the small, of `width` channels, a stem of `kernel` and `classes`; its numbers start at `first`.
fn model(width: usize, kernel: usize, classes: usize, first: f32) -> StateDict {
    state([
        ("conv1.weight", tensor(&[width, 3, kernel, kernel], first)),
        ("bn1.weight", tensor(&[width], first)),
        ("bn1.num_batches_tracked", count(first as i64)),
        ("layer1.0.conv1.weight", tensor(&[width, width, 3, 3], first)),
        ("fc.weight", tensor(&[classes, 8 * width], first)),
        ("fc.bias", tensor(&[classes], first)),
    ])
}

/// The line with which `from` is refused by a model of 4 channels, stem 3x3 and 10 classes.
#[track_caller]
fn refusal(from: StateDict) -> String {
    let mut into = model(4, 3, 10, 0.0);
    let error = transplant(&mut into, from, "'their.pth'").expect_err("should be refused");
    assert!(matches!(error, Error::Checkpoint(_)), "{error:?}");
    assert_eq!(into, model(4, 3, 10, 0.0), "changed all the same");
    assert_line(&error.to_string(), &["'their.pth'"]);
    error.to_string()
}

#[test]
fn the_same_model_is_taken_whole_and_in_silence() {
    let mut into = model(4, 3, 10, 0.0);
    let report = transplant(&mut into, model(4, 3, 10, 5.0), "'their.pth'").unwrap();
    assert_eq!((into, &report), (model(4, 3, 10, 5.0), &Report::default()));
    assert!(report.notes().is_empty());
}

#[test]
fn a_head_of_other_classes_stays_fresh_and_is_told() {
    let mut into = model(4, 3, 10, 0.0);
    let report = transplant(&mut into, model(4, 3, 1000, 5.0), "'their.pth'").unwrap();
    let (ours, theirs) = (model(4, 3, 10, 0.0), model(4, 3, 10, 5.0));
    for (name, tensor) in &into {
        let source = if name.starts_with("fc.") { &ours } else { &theirs };
        assert_eq!(tensor, &source[name], "{name}");
    }
    assert_eq!(report, Report { dropped_head: Some((1000, 10)), ..Report::default() });
    assert_eq!(report.notes(), ["head of 1000 classes dropped; the new one has 10 and starts untrained"]);
}

#[test]
fn what_is_missing_or_left_over_is_listed() {
    let mut into = model(4, 3, 10, 0.0);
    let mut from = model(4, 3, 10, 5.0);
    for name in ["bn1.num_batches_tracked", "bn1.weight", "fc.bias"] {
        from.remove(name);
    }
    for name in ["layer9.a", "layer9.b", "layer9.c", "layer9.d\n"] {
        from.insert(name.into(), count(1));
    }
    let report = transplant(&mut into, from, "'their.pth'").unwrap();
    assert_eq!(report.missing, ["bn1.weight", "fc.bias"]);
    assert_eq!(report.unexpected, ["layer9.a", "layer9.b", "layer9.c", "layer9.d\n"]);
    let notes =
        ["missing, so initialised: 'bn1.weight', 'fc.bias'", "not used: 'layer9.a', 'layer9.b', 'layer9.c' and 1 more"];
    assert_eq!(report.notes(), notes);
    assert_eq!(into["bn1.weight"], model(4, 3, 10, 0.0)["bn1.weight"]);
    assert_eq!((into.len(), &into["conv1.weight"]), (6, &model(4, 3, 10, 5.0)["conv1.weight"]));
}

#[test]
fn another_stem_or_width_is_answered_with_the_flags_for_it() {
    let imagenet = refusal(model(4, 7, 10, 5.0));
    assert_line(&imagenet, &["'conv1.weight'", "[4, 3, 7, 7]", "[4, 3, 3, 3]", "set --stem imagenet"]);
    assert!(!imagenet.contains("--width"), "{imagenet}");
    let wide = refusal(model(64, 3, 10, 5.0));
    assert_line(&wide, &["'conv1.weight'", "[64, 3, 3, 3]", "set --width 64"]);
    assert!(!wide.contains("--stem"), "{wide}");
    assert_line(&refusal(model(64, 7, 1000, 5.0)), &["set --stem imagenet --width 64"]);
    let error = transplant(&mut model(4, 7, 10, 0.0), model(4, 3, 10, 5.0), "'their.pth'").unwrap_err();
    assert_line(&error.to_string(), &["set --stem cifar"]);
}

#[test]
fn another_shape_anywhere_else_is_refused_by_name() {
    let with = |name: &str, shape: &[usize]| {
        let mut from = model(4, 3, 10, 5.0);
        from.insert(name.into(), tensor(shape, 0.0));
        from
    };
    let bottleneck = refusal(with("layer1.0.conv1.weight", &[4, 4, 1, 1]));
    assert_line(&bottleneck, &["'layer1.0.conv1.weight'", "[4, 4, 1, 1]", "[4, 4, 3, 3]", "ResNet"]);
    assert_line(&refusal(with("fc.weight", &[1000, 64])), &["'fc.weight'", "[1000, 64]", "[10, 32]"]);
    assert_line(&refusal(with("conv1.weight", &[4, 1, 3, 3])), &["'conv1.weight'", "[4, 1, 3, 3]"]);
    assert_line(&refusal(with("bn1.num_batches_tracked", &[])), &["'bn1.num_batches_tracked'", "integers"]);
}

#[test]
fn weights_of_something_else_are_refused_with_a_few_of_their_names() {
    let names = ["blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.bias", "cls_token", "pos_embed"];
    let from = names.into_iter().map(|name| (name.to_owned(), tensor(&[2], 0.0))).collect();
    assert_line(&refusal(from), &["'blocks.0.attn.qkv.weight'", "'cls_token'", "1 more", "'bn1.num_batches_tracked'"]);
    assert_line(&refusal(StateDict::new()), &["no weight"]);
}
