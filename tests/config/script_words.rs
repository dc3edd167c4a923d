//! Words as they stand in published lines, whose meaning depends on where they stand or on other words.

use std::path::Path;

use kiln_data::{Interpolation, Source, TrainInterpolation};
use kiln_engine::optim::{OptimizerKind, Schedule, ScheduleKind};

use super::command_line::said;
use super::origins::words;
use super::{complaint, config, resolved};

fn typed(line: &str) -> super::Config {
    config(&words(line))
}

fn notes(line: &str) -> String {
    resolved(&words(line)).notes.join("\n")
}

#[test]
fn a_directory_may_stand_behind_a_switch() {
    for origin in ["pytorch-examples", "timm", "apex"] {
        let config = typed(&format!("--as {origin} -b 64 --pretrained photos"));
        assert_eq!((config.model.pretrained.as_str(), config.data.dir.as_path()), ("torchvision", Path::new("photos")));
    }
    assert_eq!(typed("--pretrained weights.pth").model.pretrained, "weights.pth");
}

#[test]
fn a_file_of_weights_goes_before_the_switch() {
    for line in ["--pretrained --pretrained-path w.pth", "--initial-checkpoint w.pth --pretrained"] {
        assert_eq!(typed(&format!("--as timm photos {line}")).model.pretrained, "w.pth", "{line}");
    }
    for (value, weights) in [("true", "torchvision"), ("false", ""), ("w.pth", "w.pth")] {
        assert_eq!(typed(&format!("--as lightning model.pretrained={value}")).model.pretrained, weights);
    }
}

#[test]
fn a_short_option_may_have_an_equals_sign() {
    let config = typed("--as timm photos -b=48 -j=8 -d torch/cifar100");
    assert_eq!((config.parallel.batch_size, config.data.source), (48, Source::Cifar100));
    assert_eq!(typed("-a=resnet34").model.depth, 34);
}

#[test]
fn timms_names_of_folders_and_of_no_schedule_are_known() {
    for name in ["imagenet", "ImageFolder", "torch/folder"] {
        assert_eq!(typed(&format!("--as timm photos --dataset {name}")).data.source, Source::Folder);
    }
    let config = typed("--as timm photos --sched none");
    assert_eq!((config.schedule.kind, config.schedule.warmup_epochs), (ScheduleKind::Constant, 0.0));
}

#[test]
fn lightnings_lists_and_classes_are_known() {
    let config = typed("--trainer.gpus 0,1, --trainer.accelerator ddp");
    assert_eq!((config.parallel.world_size, config.parallel.gpu_ids.as_slice()), (2, &[0, 1][..]));
    assert_eq!(typed("trainer.gpus=0,").parallel.world_size, 1);
    assert_eq!(typed("--as lightning --optimizer AdamW").optim.optimizer, OptimizerKind::AdamW);
    assert_eq!(typed("model.learning_rate=0.25").optim.learning_rate, 0.25);
}

#[test]
fn words_without_influence_stop_no_line() {
    typed("--as torchvision --transformer-embedding-decay 0.0 --backend tensor");
    typed("trainer.benchmark=true");
}

#[test]
fn timms_tags_name_weights_of_a_network() {
    let config = typed("--as timm photos --model wide_resnet50_2.tv2_in1k");
    assert_eq!((config.model.depth, config.model.width_per_group, config.data.center_crop), (50, 128, 0.875));
    assert!(notes("--as timm photos --model resnet50.a1_in1k").contains("the tag behind"));
    assert!(!notes("--as timm photos --model resnet50").contains("the tag behind"));
    let refused = complaint(&words("--as timm photos --model resnet5.a1_in1k"));
    assert!(refused.contains("resnet18, resnet34") && refused.contains("got 'resnet5.a1_in1k'"), "{refused}");
}

#[test]
fn training_images_have_timms_filter() {
    let of = |line: &str| {
        let data = typed(&format!("--as timm photos {line}")).data;
        (data.train_interpolation, data.interpolation)
    };
    assert_eq!(of(""), (TrainInterpolation::Random, Interpolation::Bicubic));
    let line = "--train-interpolation bicubic --interpolation bilinear";
    assert_eq!(of(line), (TrainInterpolation::Bicubic, Interpolation::Bilinear));
}

#[test]
fn an_experiment_is_below_the_directory_of_all() {
    let of = |line: &str| typed(&format!("--as timm photos {line}")).run.output_dir;
    assert_eq!(of("--experiment a3"), Path::new("output/train/a3"));
    assert_eq!(of("--output runs --experiment a3"), Path::new("runs/a3"));
    assert_eq!(of("--experiment a3 --output runs"), Path::new("runs/a3"));
    assert_eq!(of("--output runs"), Path::new("runs"));
}

#[test]
fn a_warm_up_may_be_longer_than_the_run() {
    let line = "--as horovod --epochs 1 --train-dir photos/train";
    let schedule = typed(line).schedule;
    assert_eq!(schedule.warmup_epochs, 5.0);
    assert!(notes(line).contains("the warm-up of 5 epochs is longer than the run"), "{}", notes(line));
    assert!(!notes("--epochs 5 --warmup-epochs 5").contains("longer than the run"));
    let schedule = Schedule::new(&schedule, 0.0125, 2, 1, [1, 10]);
    // A fiftieth of the way from the rate of one replica to that of two in each step.
    assert!((schedule.at(9) - 0.0125 * (1.0 + 9.0 / 50.0)).abs() < 1e-12, "{}", schedule.at(9));
}

#[test]
fn default_weights_are_those_of_the_network() {
    assert_eq!(typed("--as torchvision --model resnet18 --weights DEFAULT").model.pretrained, "torchvision");
    let refused = complaint(&words("--as torchvision --model resnet50 --weights DEFAULT"));
    assert!(refused.contains("IMAGENET1K_V1"), "{refused}");
    assert_eq!(typed("--ckpt_path runs/0001"), typed("--resume runs/0001"));
}

#[test]
fn what_is_refused_names_what_was_meant() {
    assert!(complaint(&words("--data /photos")).contains("use --data folder --data-dir /photos"));
    let lines = said(&words("--as timm x --sched-on-update --warmth 0.1 2 3e4"));
    assert_eq!(lines[0], "unknown option '--sched-on-update'; did you mean '--sched-on-updates'?");
    assert!(lines[1].contains("'--warmth'") && lines.len() == 2, "{lines:#?}");
    typed("--as horovod --train-dir photos/train --checkpoint-format ./checkpoint-{epoch}.pth.tar");
}
