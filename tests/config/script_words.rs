//! Words as they stand in published lines, whose meaning depends on where they stand or on other words.

use std::path::Path;

use kiln_data::Source;
use kiln_engine::optim::{OptimizerKind, ScheduleKind};

use super::config;

fn typed(line: &str) -> super::Config {
    config(&line.split_whitespace().collect::<Vec<_>>())
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
