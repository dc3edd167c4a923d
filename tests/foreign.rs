//! Weights of others at the command line: what one command reads, every command reads, and what none can use is refused
//! by its name.

use std::path::Path;
use std::process::Output;

use kiln::weights::to_pth;
use kiln_engine::state::{HostTensor, StateDict, from_safetensors, to_safetensors};
use serde_json::Value;

use crate::command::{Workplace, errors, succeeded};
use crate::files::file;
use crate::python::ask;

/// A small trained network, and an image.
fn trained() -> (Workplace, StateDict) {
    let place = Workplace::new();
    place.train("run", &["--epochs=1"]);
    let path = place.run("run").checkpoint("best/model.safetensors");
    let tensors = from_safetensors(&std::fs::read(&path).unwrap(), &path).unwrap().0;
    image::RgbImage::from_fn(32, 32, |x, y| image::Rgb([7 * x as u8, 7 * y as u8, 90]))
        .save(place.path("a.png"))
        .unwrap();
    (place, tensors)
}

fn predicted(place: &Workplace, weights: &str) -> Output {
    let frame = ["--image-size=32", "--center-crop=0", "--exif=ignore", "--mean=0.5,0.5,0.5", "--std=0.2,0.2,0.2"];
    place.bare(&[&["predict", "--checkpoint", weights, "--json", "a.png"], &frame[..]].concat()).output().unwrap()
}

fn evaluated(place: &Workplace, weights: &str) -> Output {
    let data = ["data=synthetic", "data.val_size=16", "--output-dir=measured"];
    place.bare(&[&["evaluate", "--checkpoint", weights], &data[..]].concat()).output().unwrap()
}

fn exported(place: &Workplace, weights: &str, output: &str) -> Output {
    let to = output.rsplit_once('.').unwrap().1;
    place.bare(&["export", "--checkpoint", weights, "--to", to, "--output", output]).output().unwrap()
}

fn pretrained(place: &Workplace, weights: &str) -> Output {
    place.small("never", &["--max-steps=1", "--dry-run", &format!("--pretrained={weights}")]).output().unwrap()
}

fn indices(output: &Output) -> Vec<(u64, f64)> {
    let answers: Value = serde_json::from_str(&succeeded(output)).unwrap();
    let guesses = answers[0]["predictions"].as_array().unwrap();
    guesses.iter().map(|it| (it["index"].as_u64().unwrap(), it["probability"].as_f64().unwrap())).collect()
}

#[track_caller]
fn refused(output: &Output, code: i32, parts: &[&str]) {
    let lines = errors(output);
    let line = lines.last().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{lines:?}");
    parts.iter().for_each(|part| assert!(line.contains(part), "'{part}' is not in '{line}'"));
}

#[test]
fn what_one_command_reads_every_command_reads() {
    let (place, tensors) = trained();
    let wrapped: StateDict =
        tensors.iter().map(|(name, it)| (format!("_orig_mod.module.{name}"), it.clone())).collect();
    let mut averaged: StateDict = tensors.iter().map(|(name, it)| (format!("module.{name}"), it.clone())).collect();
    averaged.insert("n_averaged".into(), HostTensor::I64 { shape: vec![], data: vec![5] });
    let mut old = tensors.clone();
    old.retain(|name, _| !name.ends_with("num_batches_tracked"));
    std::fs::write(place.path("plain.pth"), to_pth(&tensors, None).unwrap()).unwrap();
    std::fs::write(place.path("wrapped.pth"), to_pth(&wrapped, None).unwrap()).unwrap();
    std::fs::write(place.path("averaged.safetensors"), to_safetensors(&averaged, &[])).unwrap();
    std::fs::write(place.path("old.pth"), to_pth(&old, None).unwrap()).unwrap();
    let expected = indices(&predicted(&place, "plain.pth"));
    succeeded(&exported(&place, "plain.pth", "plain.onnx"));
    for name in ["wrapped.pth", "averaged.safetensors", "old.pth"] {
        let output = predicted(&place, name);
        assert_eq!(indices(&output), expected, "{name}");
        let note = "holds tensors that are not part of the network and are ignored: 'n_averaged'";
        assert_eq!(errors(&output).iter().any(|line| line.contains(note)), name.starts_with("averaged"), "{name}");
        succeeded(&evaluated(&place, name));
        succeeded(&exported(&place, name, "its.onnx"));
        assert!(std::fs::read(place.path("its.onnx")).unwrap() == std::fs::read(place.path("plain.onnx")).unwrap());
        succeeded(&exported(&place, name, "its.pth"));
        let written = kiln::weights::read(&place.path("its.pth")).unwrap().tensors;
        assert!(written.keys().eq(tensors.keys()), "{name}");
        let plan = succeeded(&pretrained(&place, name));
        assert!(plan.contains(&format!("from {name}")) && !plan.contains("missing, so initialised"), "{plan}");
    }
}

#[test]
fn weights_that_are_no_whole_resnet_are_called_what_they_are() {
    let (place, tensors) = trained();
    let mut parameters = tensors.clone();
    parameters.retain(|name, _| !name.contains("running_") && !name.contains("num_batches"));
    std::fs::write(place.path("parameters.pth"), to_pth(&parameters, None).unwrap()).unwrap();
    let floats = |shape: &[usize]| HostTensor::F32 { shape: shape.into(), data: vec![0.5; shape.iter().product()] };
    let blocks = [3, 4, 6, 3].iter().zip(1..).flat_map(|(blocks, stage)| (0..*blocks).map(move |at| (stage, at)));
    let mut deep: StateDict =
        blocks.map(|(stage, at)| (format!("layer{stage}.{at}.conv3.weight"), floats(&[256, 64, 1, 1]))).collect();
    deep.extend([("conv1.weight".into(), floats(&[64, 3, 7, 7])), ("fc.weight".into(), floats(&[10, 2048]))]);
    deep.insert("layer1.0.conv1.weight".into(), floats(&[64, 64, 1, 1]));
    std::fs::write(place.path("deep.pth"), to_pth(&deep, None).unwrap()).unwrap();
    let statistics = ["'parameters.pth'", "lacks the running statistics", "save model.state_dict()"];
    let bottlenecks = ["'deep.pth' holds a ResNet of 50 layers with other bottlenecks", "give weights of a ResNet-50,"];
    for (name, parts) in [("parameters.pth", &statistics[..]), ("deep.pth", &bottlenecks)] {
        refused(&predicted(&place, name), 1, parts);
        refused(&evaluated(&place, name), 1, parts);
        refused(&exported(&place, name, "its.safetensors"), 1, parts);
    }
    let other = ["'deep.pth' holds a ResNet-50 where the model is a ResNet-18; set --depth 50"];
    refused(&pretrained(&place, "deep.pth"), 1, &other);
    let plan = succeeded(&pretrained(&place, "parameters.pth"));
    assert!(plan.contains("missing, so initialised: 'bn1.running_mean'"), "{plan}");
    // Objects beside the tensors are skipped; what is wanted as tensors is named, and nothing is run.
    let whole = file("tests/fixtures/weights/module_object.pth");
    refused(&predicted(&place, whole.to_str().unwrap()), 1, &["an object of '__main__.Net', which was not executed"]);
    assert!(!Path::new("/tmp/kiln-weights-executed").exists());
}

#[test]
fn a_name_or_an_address_in_place_of_a_file_is_answered_with_what_was_meant() {
    let place = Workplace::new();
    let url = "https://download.pytorch.org/models/resnet18-f37072fd.pth";
    refused(&pretrained(&place, url), 2, &[url, "curl -LO https", "--pretrained torchvision"]);
    refused(&predicted(&place, url), 2, &[url, "curl -LO https"]);
    let meant = "for torchvision's weights use --pretrained torchvision";
    refused(&pretrained(&place, "resnet18"), 1, &["--pretrained 'resnet18' does not exist", meant]);
    refused(&pretrained(&place, "resnet34"), 1, &[&format!("{meant} --depth 34")]);
    refused(&pretrained(&place, "resnet101"), 1, &[&format!("{meant} --depth 101")]);
    refused(&pretrained(&place, "resnext50_32x4d"), 1, &[&format!("{meant} --arch resnext50_32x4d")]);
    refused(&pretrained(&place, "IMAGENET1K_V1"), 1, &[meant]);
    refused(&pretrained(&place, "mine.pth"), 1, &["'mine.pth' does not exist", "or 'torchvision'"]);
}

#[test]
fn what_a_file_says_wrongly_about_images_is_named_once() {
    let (place, tensors) = trained();
    let pairs = [("mean", "0.5,0.5"), ("image_size", "0"), ("classes", "cat, dog"), ("exif", "apply")];
    let pairs = pairs.map(|(key, value)| (key.to_string(), value.to_string()));
    std::fs::write(place.path("said.safetensors"), to_safetensors(&tensors, &pairs)).unwrap();
    let output = place.bare(&["predict", "--checkpoint=said.safetensors", "a.png"]).output().unwrap();
    succeeded(&output);
    let lines = errors(&output);
    for (key, rule) in [
        ("classes 'cat, dog'", "a list of names in JSON"),
        ("mean '0.5,0.5'", "three numbers, separated by commas"),
        ("image_size '0'", "a whole number, 1 to 1024"),
    ] {
        let fault = format!("'said.safetensors' says {key}, which must be {rule}; this is ignored");
        assert_eq!(lines.iter().filter(|line| line.contains(&fault)).count(), 1, "{lines:?}");
    }
    // What is missing is assumed, and what is said is not.
    assert!(lines.iter().any(|line| line.contains("assumed: --mean") && !line.contains("--exif")), "{lines:?}");
}

#[test]
fn a_head_for_as_many_other_classes_is_taken_with_a_note() {
    let (place, _) = trained();
    succeeded(&exported(&place, "run", "same.pth"));
    let names = (0..10).map(|at| format!("kind {at}")).collect::<Vec<_>>().join(",");
    let classes = format!("--classes={names}");
    let export = ["export", "--checkpoint=run", "--to=pth", "--output=other.pth", &classes];
    succeeded(&place.bare(&export).output().unwrap());
    let note = "head kept although a class is named 'kind 0' in the weights and";
    let [same, other] = ["same.pth", "other.pth"].map(|name| succeeded(&pretrained(&place, name)));
    assert!(other.contains(note), "{other}");
    assert!(!same.contains("head kept although"), "{same}");
}

/// Runs where the virtual environment of `make setup-tch` has torchvision.
#[test]
fn an_export_says_the_lines_of_python_that_load_it() {
    let place = Workplace::new();
    let networks: [(&str, &str, &[&str], &str); 4] = [
        ("cifar", "cifar", &["--depth=18"], "resnet18(num"),
        ("imagenet", "imagenet", &["--depth=34"], "resnet34(num"),
        ("groups", "imagenet", &["--depth=50", "--groups=32", "--width-per-group=4"], "resnext50_32x4d(num"),
        ("own", "imagenet", &["--depth=50", "--groups=2"], "resnet50(groups=2, width_per_group=64, num"),
    ];
    for (name, stem, more, call) in networks {
        let stem = format!("--stem={stem}");
        let tiny = ["--width=64", "--image-size=8", "data.train_size=8", "data.val_size=8", "--batch-size=2"];
        place.train(name, &[&tiny[..], more, &[&stem, "--max-steps=1"]].concat());
        let said = succeeded(&exported(&place, name, &format!("{name}.pth")));
        let lines: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("torchvision ")).collect();
        assert_eq!(lines.len(), if name == "cifar" { 3 } else { 1 }, "{said}");
        assert!(lines[0].contains(&format!("torchvision.models.{call}")), "{said}");
        let code = lines.iter().map(|line| &line[12..]).collect::<Vec<_>>().join("\n");
        std::fs::write(place.path("lines.py"), code).unwrap();
        let [lines, weights] = [place.path("lines.py"), place.path(&format!("{name}.pth"))];
        let Some(found) = ask("torch, torchvision", "weights/exported.py", &[&lines, &weights]) else { return };
        assert_eq!(found.trim(), "[2, 10]");
    }
    place.train("narrow", &["--max-steps=1"]);
    let said = succeeded(&exported(&place, "narrow", "narrow.pth"));
    assert!(said.contains("torchvision has no network for these weights (ResNet-18, width 4)"), "{said}");
    assert!(!succeeded(&exported(&place, "narrow", "narrow.onnx")).contains("torchvision"));
}
