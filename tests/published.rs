//! Published recipes, trained for a step on drawn images.

use crate::command::{Workplace, succeeded};

/// Settings that make a step small, after those of the recipe.
const TINY: &str = "--data synthetic data.train_size=64 data.val_size=16 --image-size 32 --width 4 \
                    model.num_classes=10 --world-size 2 --gpu-ids 0 --batch-size 8 --max-steps 1 --limit-val-batches 1 \
                    --backend flex --precision f32 --output-dir run";

#[test]
fn a_step_of_each_recipe_is_trained() {
    for (recipe, parts) in [
        (
            "--as torchvision --model resnet50 --lr 0.5 --lr-scheduler cosineannealinglr --lr-warmup-epochs 5 \
             --lr-warmup-method linear --auto-augment ta_wide --epochs 600 --random-erase 0.1 --weight-decay 0.00002 \
             --norm-weight-decay 0.0 --label-smoothing 0.1 --mixup-alpha 0.2 --cutmix-alpha 1.0 --train-crop-size 176 \
             --model-ema --val-resize-size 232 --ra-sampler --ra-reps=4",
            ["ResNet-50", "label smoothing 0.1"],
        ),
        ("--as torchvision --model resnet18 --interpolation nearest", ["ResNet-18", "SGD, momentum 0.9"]),
        ("--as torchvision --model wide_resnet50_2 --epochs 100 --auto-augment augmix", ["ResNet-50", "x 0.1 every"]),
        (
            "--as timm imagenet --model resnet50 --img-size 160 --epochs 100 --lr 8e-3 --opt lamb --weight-decay .02 \
             --bce-loss --smoothing 0 --aa rand-m6-mstd0.5-inc1 --mixup .1 --cutmix 1.0",
            ["LAMB", "binary cross-entropy"],
        ),
        (
            "--as timm imagenet --model resnet18 --lr 0.6 --sched step --reprob 0.4 --recount 3 --remode pixel \
             --drop-path 0.1 --aug-repeats 2 --bce-loss --bce-target-thresh 0.2",
            ["Nesterov", "binary cross-entropy"],
        ),
        (
            "--as timm imagenet --model resnet50 --sched cosine --epochs 200 --lr 0.05 --amp --remode pixel --reprob \
             0.6 --aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd --dist-bn reduce",
            ["in 3 views each", "Jensen-Shannon divergence"],
        ),
    ] {
        let place = Workplace::new();
        let line: Vec<_> = recipe.split_whitespace().chain(TINY.split_whitespace()).collect();
        let output = succeeded(&place.bare(&line).output().unwrap());
        for part in parts.into_iter().chain(["in Kiln's own words: train ", "1 step in"]) {
            assert!(output.contains(part), "{recipe}: no '{part}' in {output}");
        }
    }
}

/// Sizes in another script's words count in an evaluation, too.
#[test]
fn an_evaluation_has_the_sizes_that_are_typed() {
    let place = Workplace::new();
    let tiny: Vec<_> = TINY.split_whitespace().collect();
    succeeded(&place.bare(&[&["--as", "torchvision", "--max-steps", "2"], &tiny[..]].concat()).output().unwrap());
    let evaluated = |sizes: &str| {
        let line = format!("--as torchvision --test-only --resume run --output-dir measured {sizes}");
        succeeded(&place.bare(&line.split_whitespace().collect::<Vec<_>>()).output().unwrap());
        std::fs::read_to_string(place.path("measured/evaluation.json")).unwrap()
    };
    let plain = evaluated("");
    assert_eq!(plain, evaluated("--center-crop 0.875"), "torchvision's default");
    assert_ne!(plain, evaluated("--train-crop-size 32 --val-crop-size 32 --val-resize-size 64"));
}
