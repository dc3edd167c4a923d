//! Published command lines with `--as ORIGIN`: they mean what they mean to the script that they were written for.

use kiln::config::alias::origins::ORIGINS;
use kiln::config::resolve;
use kiln_engine::optim::{LrScaling, Schedule};
use kiln_system::Error;

use super::{Cli, Command, Config, complaint, complaints, config, request, resolved};

/// What a published line trains there: epochs, replicas, images of a replica, peak of the learning rate, depth.
struct There {
    line: &'static str,
    epochs: usize,
    world: usize,
    batch: usize,
    peak: f64,
    depth: usize,
}

const fn there(line: &'static str, [epochs, world, batch, depth]: [usize; 4], peak: f64) -> There {
    There { line, epochs, world, batch, peak, depth }
}

/// Lines from public repositories and documentation, without the program's name and with a number of processes where
/// a launcher gives it.
const PUBLISHED: &[There] = &[
    there(
        "--as pytorch-examples -a resnet18 -b 256 --epochs 1 --lr 0.01 --multiprocessing-distributed --dist-url \
         tcp://127.0.0.1:5143 --world-size 1 --rank 0 --dist-backend nccl tiny-imagenet-200",
        [1, 1, 256, 18],
        0.01,
    ),
    there(
        "--as pytorch-examples -a resnet50 --dist-url tcp://127.0.0.1:23456 --dist-backend nccl \
         --multiprocessing-distributed --world-size 1 --rank 0 --dummy --gpu-ids 0,1,2,3,4,5,6,7",
        [90, 8, 32, 50],
        0.1,
    ),
    there(
        "--as pytorch-examples -a resnet50 --dummy --dist-url tcp://127.0.0.1:23456 --dist-backend nccl \
         --multiprocessing-distributed --world-size 1 --rank 0 -b 128 -p 20 --epochs 1",
        [1, 1, 128, 50],
        0.1,
    ),
    there(
        "--as pytorch-examples -a resnet50 --dist-url tcp://10.10.116.244:4000 --dist-backend nccl \
         --multiprocessing-distributed --world-size 2 --batch-size 128 --rank 1 image2012 --gpu-ids 0,1,2,3",
        [90, 8, 32, 50],
        0.1,
    ),
    there("--as pytorch-examples -a resnet18 imagenet_small", [90, 1, 256, 18], 0.1),
    there("--as pytorch-examples --arch resnet34 --lr 0.1 -j 16 imagenet --gpu-ids 0,1,2", [90, 3, 85, 34], 0.1),
    there(
        "--as torchvision --data-path data/imagenette2-320 --model resnet18 --epochs 4 --batch-size 64 --workers 0 \
         --lr 0.05 --lr-scheduler cosineannealinglr --lr-warmup-epochs 1 --lr-warmup-method linear --output-dir out",
        [4, 1, 64, 18],
        0.05,
    ),
    there("--as torchvision --world-size 8 --model resnet18 --data-path imagenet", [90, 8, 32, 18], 0.1),
    there("--as torchvision --world-size 8 --model resnext101_32x8d --epochs 100", [100, 8, 32, 101], 0.1),
    there("--as torchvision --world-size 64 --model resnext101_32x8d --batch-size 16 --lr 0.4", [90, 64, 16, 101], 0.4),
    there(
        "--as timm /imagenet --world-size 8 --model resnet18 --lr 0.5 --epochs 100 -b 64 --sched step --decay-epochs 30",
        [100, 8, 64, 18],
        0.5,
    ),
    there(
        "--as timm --data-dir /data --dataset torch/cifar10 --model resnet18 --num-classes 10",
        [300, 1, 128, 18],
        0.05,
    ),
    there("--as timm /data --world-size 4 --model resnet50 --opt adamw --lr-base 1e-3 -b 64", [300, 4, 64, 50], 1e-3),
    there("--as timm /data --world-size 4 --grad-accum-steps 2 --lr-base 0.1 -b 64", [300, 4, 64, 50], 0.2),
    there("--as apex -a resnet50 --b 128 --workers 4 --opt-level O0 ./", [90, 1, 128, 50], 0.05),
    there("--as apex --world-size 2 -a resnet50 --b 224 --workers 4 --opt-level O2 ./", [90, 2, 224, 50], 0.175),
    there("--as apex -a resnet50 --fp16 --b 224 --workers 4 --static-loss-scale 128.0 ./", [90, 1, 224, 50], 0.0875),
    there("--as apex -a resnet50 --epochs 1 --b 128 --workers 1 --opt-level O1 ./", [1, 1, 128, 50], 0.05),
    there(
        "--as horovod --train-dir resnet50-demo/train --val-dir resnet50-demo/val --epochs 2 --world-size 4",
        [2, 4, 32, 50],
        0.05,
    ),
    there(
        "--as horovod --epochs 1 --batch-size 64 --val-batch-size 64 --train-dir w/data/train --val-dir w/data/val",
        [1, 1, 64, 50],
        0.0125,
    ),
    there(
        "--as horovod --train-dir /data/train --val-dir /data/val/ --log-dir logs --epochs 90 --batches-per-allreduce 2 \
         --world-size 8",
        [90, 8, 32, 50],
        0.2,
    ),
    there("--as horovod --batches-per-allreduce 4 --base-lr 0.01", [90, 1, 32, 50], 0.04),
    there("--as composer /path/to/imagenet", [90, 1, 2048, 50], 2.048),
    there(
        "--as composer /path/to/imagenet --train_batch_size 2048 --max_duration 36ep --t_warmup 8ep --world-size 8",
        [36, 8, 256, 50],
        2.048,
    ),
    there("--as lightning fit --model.data_path /path/to/imagenet", [90, 1, 256, 18], 0.1),
    there(
        "--as lightning fit --trainer.max_epochs 3000 --trainer.accelerator cpu --trainer.devices 2 --data.batch_size 64",
        [3000, 2, 64, 18],
        0.1,
    ),
    there(
        "--as lightning fit --trainer.max_epochs 3 --trainer.devices 4 --trainer.strategy ddp --model.batch_size 256 \
         --model.arch resnet34 --model.data_path x",
        [3, 4, 64, 34],
        0.1,
    ),
    // The second recipe of torchvision, and those of "ResNet strikes back".
    there(
        "--as torchvision --world-size 8 --model resnet50 --batch-size 128 --lr 0.5 --lr-scheduler cosineannealinglr \
         --lr-warmup-epochs 5 --lr-warmup-method linear --auto-augment ta_wide --epochs 600 --random-erase 0.1 \
         --weight-decay 0.00002 --norm-weight-decay 0.0 --label-smoothing 0.1 --mixup-alpha 0.2 --cutmix-alpha 1.0 \
         --train-crop-size 176 --model-ema --val-resize-size 232 --ra-sampler --ra-reps=4",
        [600, 8, 128, 50],
        0.5,
    ),
    there(
        "--as timm --world-size 4 /data/imagenet --model resnet50 -b 512 --img-size 160 --epochs 100 --sched cosine \
         --lr 8e-3 --warmup-epochs 5 --warmup-lr 1e-6 --opt lamb --weight-decay .02 --bce-loss --smoothing 0 --aa \
         rand-m6-mstd0.5-inc1 --mixup .1 --cutmix 1.0 --amp -j 16 --pin-mem --channels-last",
        [100, 4, 512, 50],
        8e-3,
    ),
    there(
        "--as timm --world-size 4 /data/imagenet --model resnet50 -b 512 --epochs 600 --lr 5e-3 --opt lamb \
         --weight-decay .01 --drop-path 0.05 --bce-loss --bce-target-thresh 0.2 --smoothing 0.1 --aa \
         rand-m7-mstd0.5-inc1 --mixup .2 --cutmix 1.0 --aug-repeats 3 --amp",
        [600, 4, 512, 50],
        5e-3,
    ),
    // Of timm's page of training lines.
    there(
        "--as timm --world-size 8 /imagenet --model resnext50_32x4d --lr 0.6 --warmup-epochs 5 --epochs 240 \
         --weight-decay 1e-4 --sched cosine --reprob 0.4 --recount 3 --remode pixel --aa rand-m7-mstd0.5-inc1 -b 192 \
         -j 6 --amp --dist-bn reduce",
        [240, 8, 192, 50],
        0.6,
    ),
    there(
        "--as timm --world-size 2 /imagenet --model resnet50 -b 64 --sched cosine --epochs 200 --lr 0.05 --amp --remode \
         pixel --reprob 0.6 --aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd --dist-bn reduce",
        [200, 2, 64, 50],
        0.05,
    ),
    there(
        "--as timm --world-size 2 /imagenet/ --model resnet50 --sched cosine --epochs 150 --warmup-epochs 5 --lr 0.4 \
         --reprob 0.5 --remode pixel --batch-size 256 --amp -j 4",
        [150, 2, 256, 50],
        0.4,
    ),
];

pub(super) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn schedule(config: &Config) -> Schedule {
    let lengths = [config.run.epochs, 10];
    let accumulation = config.run.accumulation_steps;
    Schedule::new(&config.schedule, config.optim.learning_rate, config.parallel.world_size, accumulation, lengths)
}

#[test]
fn a_published_line_means_what_it_means_to_its_script() {
    for There { line, epochs, world, batch, peak, depth } in PUBLISHED {
        let config = config(&words(line));
        let parallel = &config.parallel;
        assert_eq!((config.run.epochs, parallel.world_size, parallel.batch_size), (*epochs, *world, *batch), "{line}");
        let found = schedule(&config).peak;
        assert!((found - peak).abs() < 1e-9, "{line}: {found}");
        assert_eq!(config.model.depth, *depth, "{line}");
        assert!(!parallel.sync_bn, "{line}");
    }
    for origin in ORIGINS {
        assert!(PUBLISHED.iter().any(|there| words(there.line)[1] == origin.name), "{} is not tested", origin.name);
    }
}

/// The note with the line in Kiln's own words.
fn own_words(line: &str) -> String {
    let notes = resolved(&words(line)).notes;
    let note = notes.iter().find_map(|note| note.strip_prefix("in Kiln's own words: train "));
    note.unwrap_or_else(|| panic!("{line}: {notes:#?}")).to_string()
}

#[test]
fn the_line_in_kilns_own_words_gives_the_same_configuration() {
    for There { line, .. } in PUBLISHED {
        let ours = own_words(line);
        assert_eq!(config(&words(&ours)), config(&words(line)), "{line}\n{ours}");
    }
    let spaced = "--as torchvision --data-path";
    let line = [words(spaced), vec!["my 'own' photos"]].concat();
    let note = resolved(&line).notes.pop().unwrap();
    assert!(note.contains(r"--data-dir 'my '\''own'\'' photos'"), "{note}");
}

/// The rate of an experiment follows the world; that of the script is the one of its eight processes.
#[test]
fn the_experiment_for_imagenet_is_the_second_recipe_of_torchvision() {
    let second = PUBLISHED.iter().find(|there| there.line.contains("ta_wide")).unwrap();
    let mut there = config(&words(&format!("{} --val-crop-size 224 --amp", second.line)));
    assert_eq!((there.optim.learning_rate, there.schedule.growth(8, 1)), (0.5, 1.0));
    there.optim.learning_rate /= 8.0;
    there.schedule.lr_scaling = LrScaling::Linear;
    (there.run.log_every, there.run.half_if_fast) = (0, false);
    assert_eq!(config(&words("experiment=imagenet --world-size 8 --precision f16")), there);
}

#[test]
fn every_default_and_word_of_an_origin_is_valid() {
    for origin in ORIGINS {
        config(&["--as", origin.name]);
        for word in origin.signature.split_whitespace() {
            assert!(kiln::config::alias::find(word).is_some(), "{}: {word}", origin.name);
        }
    }
}

/// The learning rates of the scripts of Apex and Horovod, which change in every step.
#[test]
fn the_warm_ups_of_apex_and_horovod_are_as_there_but_for_a_step_or_two() {
    const PER_EPOCH: usize = 10;
    let apex = |epoch: usize, step: usize| {
        let tenths = epoch / 30 + usize::from(epoch >= 80);
        let rise = if epoch < 5 { (2 + step + epoch * PER_EPOCH) as f64 / (5 * PER_EPOCH) as f64 } else { 1.0 };
        0.1 * 224.0 * 4.0 / 256.0 * 0.1_f64.powi(tenths as i32) * rise
    };
    let horovod = |epoch: usize, step: usize| {
        let at = epoch as f64 + (step + 1) as f64 / PER_EPOCH as f64;
        let share = match epoch {
            0..5 => (at * 3.0 / 5.0 + 1.0) / 4.0,
            5..30 => 1.0,
            30..60 => 0.1,
            60..80 => 0.01,
            _ => 0.001,
        };
        0.0125 * 4.0 * share
    };
    let hold = |line: &str, theirs: &dyn Fn(usize, usize) -> f64, ahead: f64| {
        let ours = schedule(&config(&words(line)));
        for step in 0..90 * PER_EPOCH {
            let (epoch, there) = (step / PER_EPOCH, theirs(step / PER_EPOCH, step % PER_EPOCH));
            let bound = if epoch < 5 { ahead } else { 0.0 } + 1e-8;
            assert!((ours.at(step) - there).abs() <= bound, "{line}: {} in step {step}, not {there}", ours.at(step));
        }
    };
    hold("--as apex --b 224 --world-size 4 .", &apex, 2.0 / 50.0 * 0.35);
    hold("--as horovod --world-size 4", &horovod, 0.75 / 50.0 * 0.05);
    let doubled = |epoch, step| 2.0 * horovod(epoch, step);
    hold("--as horovod --world-size 4 --batches-per-allreduce 2", &doubled, 0.75 / 50.0 * 0.1);
}

#[test]
fn the_plan_says_what_the_origin_counts_in_another_way() {
    let notes = |line: &str| resolved(&words(line)).notes.join("\n");
    let text = notes("--as pytorch-examples --world-size 2 --gpu-ids 0,1 -b 64 x --dist-url tcp://n:1 --rank 0");
    for said in [
        "read as a command line of imagenet/main.py",
        "the world size 2 counts machines, of 2 replicas each: --world-size 4",
        "the 2 replicas of a machine share a batch of 64 images: --batch-size 32",
        "the learning rate 0.1 is for the global batch: --lr-scaling none",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let statistics = "running statistics are averaged over replicas in all steps";
    assert!(notes("--as timm x --world-size 2").contains(statistics));
    assert!(!notes("--as timm x").contains(statistics), "one replica has its own");
    assert!(notes("--as timm x --no-aug").contains("training images are cut as those of validation"));
    let text = notes("--as timm -b 64 x");
    assert!(text.contains("the learning rate 0.1 is for 256 images: --learning-rate 0.025"), "{text}");
}

#[test]
fn words_of_one_origin_alone_say_how_it_counts() {
    let hint = |line: &str| resolved(&words(line)).notes.into_iter().find(|note| note.contains("--as "));
    let note = hint("--lr-step-size 30 --lr 0.5 --world-size 8").unwrap();
    assert!(note.contains("multiplied by 8"), "{note}");
    assert!(note.contains("word --lr-step-size: add --as torchvision"), "{note}");
    assert!(hint("--sched step --lr 0.5 --world-size 8").is_some_and(|note| note.contains("--as timm")));
    assert!(
        hint("trainer.max_epochs=3 optim.lr=0.1 trainer.devices=2").is_some_and(|note| note.contains("--as lightning"))
    );
    for plain in [
        "--lr-step-size 30 --lr 0.5",
        "--lr-step-size 30 --world-size 8",
        "--lr-step-size 30 --lr 0.5 --world-size 8 --lr-scaling linear",
        "--lr 0.5 --world-size 8",
        "--sched step --lr-step-size 3 --lr 0.5 --world-size 8",
    ] {
        assert_eq!(hint(plain), None, "{plain}");
    }
}

#[test]
fn what_the_user_adds_in_kilns_words_wins() {
    let config = config(&words("--as timm x --lr 0.5 --world-size 8 --lr-scaling sqrt run.epochs=7 --sync-bn"));
    assert_eq!(config.run.epochs, 7);
    assert!(config.parallel.sync_bn);
    assert!((schedule(&config).peak - 0.5 * 8_f64.sqrt()).abs() < 1e-12);
}

#[test]
fn an_unknown_origin_and_words_of_another_are_refused_at_once() {
    assert!(complaint(&["--as", "keras"]).contains("--as must be torchvision, timm, pytorch-examples"));
    let lines = complaints(&words("--base-lr 0.1 --lr-base 0.2 --train-batch-size 8 --multiprocessing-distributed"));
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.contains("--base-lr has a meaning only in horovod; for that add --as horovod"))
    );
    let decay = |line: &str| config(&words(line)).optim.weight_decay;
    assert!((decay("--as composer x") - 5e-4 * 0.125 / 2.048).abs() < 1e-12);
    assert!((decay("--as composer x --learning_rate 1 --momentum 0.9 --weight_decay 1e-4") - 1e-5).abs() < 1e-12);
    for line in ["--as torchvision photos", "--as lightning validate", "--as timm train.py x", "--as timm one two"] {
        assert!(complaint(&words(line)).contains("unknown argument"), "{line}");
    }
}

#[test]
fn splits_lie_in_one_directory() {
    assert_eq!(config(&words("--as horovod --train-dir train")).data.dir.to_str(), Some("."));
    let lines = complaints(&words("--as horovod --train-dir a/train --val-dir b/val"));
    assert!(lines.iter().all(|line| line.contains("beside the directory of the other split")), "{lines:?}");
    assert!(complaint(&words("--as horovod --train-dir a/images")).contains("--data-dir DIR"));
}

#[test]
fn evaluating_a_checkpoint_in_others_words_is_the_command_evaluate() {
    let parsed = |line: &str| match Cli::try_parse_from(words(line)).unwrap() {
        Command::Evaluate(evaluate) => evaluate,
        command => panic!("{line} should evaluate: {command:?}"),
    };
    let evaluate = parsed("train --as pytorch-examples -a resnet18 -e --resume runs/7 photos");
    assert_eq!(evaluate.source.checkpoint.to_str(), Some("runs/7"));
    assert_eq!(resolve(&evaluate.options.request).unwrap().config.data.dir.to_str(), Some("photos"));
    for (line, checkpoint) in [
        ("--as pytorch-examples -a resnet50 --pretrained -e photos", "torchvision"),
        ("--as torchvision --model resnet50 --weights ResNet50_Weights.IMAGENET1K_V1 --test-only", "torchvision"),
        ("--as timm photos --model resnet50 --pretrained-path w.pth --evaluate", "w.pth"),
    ] {
        let evaluate = parsed(&format!("train {line}"));
        assert_eq!(evaluate.source.checkpoint.to_str(), Some(checkpoint), "{line}");
    }
    let Err(Error::Usage(lines)) = resolve(&parsed("train --test-only").options.request) else { panic!() };
    assert!(lines[0].contains("--resume CHECKPOINT or --pretrained WEIGHTS"), "{lines:?}");
}

/// timm's options take several words; those of Kiln's commands with the same name take one.
#[test]
fn several_numbers_are_one_value_only_where_numbers_follow() {
    let parsed = |line: &str| Cli::try_parse_from(words(line)).map(|command| format!("{command:?}"));
    let line = "train predict --mean 0.5,0.5,0.5 --std 0.2,0.2,0.2 a.png";
    assert_eq!(parsed(line).unwrap(), parsed(&line.replace("--mean ", "--mean=").replace("--std ", "--std=")).unwrap());
    let long = "--as timm x --decay-milestones 30 60 80 --sched multistep";
    assert_eq!(config(&words(long)).schedule.milestones, [29, 59, 79]);
}

/// A resumed run has the numbers of its checkpoint: only what is typed has the origin's meaning.
#[test]
fn a_saved_configuration_is_not_read_as_the_origins() {
    let mut resumed = request(&words("--as pytorch-examples --gpu-ids 0,1 x"));
    resumed.saved = Some(super::Saved {
        path: "runs/1/config.toml".into(),
        text: config(&words("--world-size 4 --batch-size 8 --lr 0.2 --epochs 3")).to_toml(),
        older: "",
        note: None,
        without: &[],
    });
    let config = resolve(&resumed).unwrap().config;
    assert_eq!((config.parallel.world_size, config.parallel.batch_size), (4, 8));
    assert_eq!(config.data.source, super::Source::Folder, "a directory holds images");
    assert_eq!(config.run.epochs, 3);
    assert!((schedule(&config).peak - 0.8).abs() < 1e-12);
}
