//! What the scripts of origins have by default for an optimizer, a network, sizes of images and batch-norm's
//! statistics.

use kiln_data::Interpolation;
use kiln_engine::optim::{LossKind, LrScaling, OptimizerKind};
use kiln_engine::parallel::BnStatistics;

use crate::python::ask;

use super::origins::words;
use super::{Config, complaint, config};

#[test]
fn views_and_the_statistics_of_validation_are_those_of_timm() {
    let split = "--as timm x --world-size 2 --aug-splits 3 --resplit --split-bn --jsd --dist-bn";
    let Config { data, model, optim, parallel, .. } = config(&words(&format!("{split} reduce")));
    assert_eq!((data.views, data.erase_first_view, model.bn_parts), (3, false, 3));
    assert_eq!((optim.loss, parallel.bn_statistics), (LossKind::Jsd, BnStatistics::Mean));
    let kept = |line: &str| config(&words(line)).parallel.bn_statistics;
    assert_eq!(kept(&format!("{split} broadcast")), BnStatistics::First);
    assert_eq!((kept("--as timm x"), kept("--as torchvision")), (BnStatistics::Mean, BnStatistics::First));
    let data = config(&words("--as timm x --aug-splits 0")).data;
    assert_eq!((data.views, data.erase_first_view), (1, true));
    for (line, rule) in [
        ("--aug-splits 1", "--aug-splits must be 0, or at least 2, got '1'; one view is --aug-splits 0"),
        ("--jsd", "loss 'jsd' compares several views"),
        ("--resplit", "a first view that is not erased needs others"),
        ("--split-bn", "bn parts must be 1, or the number of views '1', got '2'"),
        ("--aug-splits 3 --mixup 0.2", "views cannot be combined with mixup"),
        ("--aug-splits 3 --cutmix 1", "views cannot be combined with cutmix"),
        ("--aug-splits 3 --no-aug", "views need augmentation"),
    ] {
        let found = complaint(&words(&format!("--as timm x {line}")));
        assert!(found.contains(rule), "{line}: {found}");
    }
}

#[test]
fn optimizers_have_the_settings_of_their_script() {
    let optim = |line: &str| config(&words(line)).optim;
    let found = optim("--as torchvision --opt rmsprop --momentum 0.8");
    assert_eq!((found.optimizer, found.alpha, found.eps, found.momentum), (OptimizerKind::RmsProp, 0.9, 0.0316, 0.8));
    for (name, kind, scaling) in [
        ("adam", OptimizerKind::Adam, LrScaling::Sqrt),
        ("nadamw", OptimizerKind::NAdamW, LrScaling::Sqrt),
        ("rmsprop", OptimizerKind::RmsProp, LrScaling::Linear),
    ] {
        let line = format!("--as timm x --opt {name}");
        let found = optim(&line);
        assert_eq!((found.optimizer, found.alpha, found.eps, found.momentum), (kind, found.alpha, 1e-8, 0.9));
        assert!(name != "rmsprop" || found.alpha == 0.9);
        assert!(!found.decay_norm_bias && !found.nesterov, "{name}");
        assert_eq!(config(&words(&line)).schedule.lr_scaling, scaling, "{name}");
    }
    assert!(complaint(&words("--as timm x --opt rmsproptf")).contains("choices of --optimizer"));
}

#[test]
fn every_network_has_the_crop_and_the_interpolation_of_timm() {
    let names = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"];
    let names = [&names[..], &["resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d"]].concat();
    let arguments: Vec<_> = names.iter().map(std::path::Path::new).collect();
    let Some(found) = ask("timm", "timm_frames.py", &arguments) else { return };
    let theirs: Vec<(f64, Interpolation)> = serde_json::from_str(&found).unwrap();
    assert_eq!(theirs.len(), names.len());
    for (name, theirs) in names.iter().zip(theirs) {
        let data = config(&["--as", "timm", "x", "--model", name]).data;
        assert_eq!((data.center_crop, data.interpolation), theirs, "{name}");
    }
    let typed = "--as timm x --model wide_resnet101_2 --crop-pct 0.9 data.interpolation=nearest";
    let data = config(&words(typed)).data;
    assert_eq!((data.center_crop, data.interpolation), (0.9, Interpolation::Nearest), "what is typed wins");
}

#[test]
fn sizes_and_the_average_are_those_of_torchvision() {
    let line = "--as torchvision --train-crop-size 176 --val-resize-size 232 --val-crop-size 224 --model-ema \
                --world-size 8 --batch-size 128 --epochs 600 --lr-warmup-epochs 5";
    let Config { data, optim, .. } = config(&words(line));
    assert_eq!((data.image_size, data.validation_side()), (176, 224));
    // The size to which an image is resized.
    assert_eq!((224.0 / data.center_crop).floor(), 232.0);
    assert_eq!((optim.ema_every, optim.ema_after_warmup), (32, true));
    let average = |line: &str| config(&words(line)).optim.ema_decay;
    assert_eq!(average("--as torchvision --model-ema-decay 0.9"), 0.0, "it needs --model-ema");
    assert_eq!(average("--as timm x --model-ema-decay 0.9"), 0.0);
    assert_eq!(average("--as timm x --model-ema --model-ema-decay 0.9"), 0.9);
    assert_eq!(average("--as torchvision --model-ema --ema-decay 0.9"), 0.9, "Kiln's own");
    let alpha = (1.0 - 0.99998) * (8 * 128 * 32) as f64 / 600.0;
    assert!((optim.ema_decay - (1.0 - alpha)).abs() < 1e-12, "{}", optim.ema_decay);
    let resized = |crop: u32, resize: u32| {
        let line = format!("--as torchvision --train-crop-size 100 --val-crop-size {crop} --val-resize-size {resize}");
        let found = config(&words(&line)).data.center_crop;
        assert_eq!((f64::from(crop) / found).floor(), f64::from(resize), "{crop} of {resize}: {found}");
    };
    for (crop, resize) in [(1, 1), (30, 90), (32, 33), (96, 131), (160, 182), (192, 219), (224, 232), (256, 299)] {
        resized(crop, resize);
    }
    assert_eq!(config(&words("--as torchvision --val-crop-size 224")).data.center_crop, 0.875);
    let line = complaint(&words("--as torchvision --val-crop-size 257"));
    assert!(line.contains("at most the size of the resized image"), "{line}");
}
