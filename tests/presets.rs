//! The ready-made experiments: each says what it is for, and each can begin.

use std::path::Path;

use burn::backend::Flex;
use kiln::weights::to_pth;
use kiln_engine::nn::{initialize, state_dict};
use kiln_training::{ModelConfig, ResNet, Stem};

use crate::command::{Workplace, photographs, succeeded};
use crate::files::file;

const EXPERIMENTS: &str = "config/experiment";

/// What torchvision publishes, but for the numbers.
fn published(file: &Path) {
    let config = ModelConfig { stem: Stem::Imagenet, ..ModelConfig::default() };
    let model = initialize(ResNet::<Flex>::new(&config, 1000, 0.0, &Default::default()), 0).unwrap();
    std::fs::write(file, to_pth(&state_dict(&model), None).unwrap()).unwrap();
}

#[test]
fn every_experiment_can_begin_and_says_what_to_expect() {
    let place = Workplace::new();
    photographs(&place.path("photographs"), 40);
    published(&place.path("resnet18.pth"));
    let sample = format!("--data-dir={}", file("data").display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(file(EXPERIMENTS)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        let text = std::fs::read_to_string(&path).unwrap();
        let head: String = text.lines().take_while(|line| line.starts_with('#')).collect::<Vec<_>>().join("\n");
        assert!(head.contains(&format!("train experiment={name}")), "{name} shows no command");
        assert!(head.contains("easured"), "{name} does not say what was measured");
        let experiment = format!("experiment={name}");
        let own = match name.as_str() {
            "imagenet" | "imagenet-short" => vec!["--data-dir=photographs"],
            // Its step has more images than there are.
            "imagenet-a3" => vec!["--data-dir=photographs", "data.drop_last=false"],
            "transfer" => vec![sample.as_str(), "--pretrained=resnet18.pth"],
            _ => vec![sample.as_str()],
        };
        let output =
            succeeded(&place.bare(&[&[experiment.as_str(), "--dry-run"], &own[..]].concat()).output().unwrap());
        let network = if matches!(name.as_str(), "imagenet" | "imagenet-a3") { "ResNet-50" } else { "ResNet-18" };
        assert!(output.contains(&format!("model       {network}")), "{name}: {output}");
        if name == "transfer" {
            assert!(output.contains("(5130 of them are trained)"), "{output}");
            assert!(output.contains("weights     head of 1000 classes dropped; the new one has 10"), "{output}");
        }
        names.push(name);
    }
    names.sort();
    assert_eq!(
        names,
        ["cifar10", "cifar10-fast", "imagenet", "imagenet-a3", "imagenet-short", "quickstart", "transfer"]
    );
}

/// Three times 0.025 is 0.07500000000000001 in f64.
#[test]
fn a_plan_prints_rates_without_rounding_noise() {
    let arguments = ["--dry-run", "--world-size=3", "--learning-rate=0.025", "--warmup-epochs=1"];
    let plan = Workplace::new().train("run", &arguments);
    assert!(plan.contains("learning rate from 0.025 to 0.075 in 3 warm-up steps, then cosine to 0"), "{plan}");
}
