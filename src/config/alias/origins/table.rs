//! One entry for each script: whose batch it names, what its learning rate is for, what its world size counts, which
//! defaults its options have, and which of its words mean something else elsewhere, or nothing.

use super::super::Means::{Nothing, Read, Sets};
use super::super::scripts::{ALWAYS, RESNET, weights};
use super::super::{Alias, COUNT, LOGS};
use super::About::{All, Averages, Tag, Word};
use super::values::{
    COMPOSER_SIZES, SIZES, accumulation, decoder, directory, ema_decay, epochs, interval, jitter, loss_scale, policy,
    pretrained, sizes, split, warmup_lr,
};
use super::{Batch, Origin, Rate, Settings};

/// A directory of photographs; batch-norm of each replica on its own.
const PHOTOGRAPHS: Settings = "data.source=folder data.image_size=224 data.resized_crop=0.08 data.center_crop=0.875 \
     data.normalization=imagenet model.stem=imagenet parallel.sync_bn=false";
const SGD: Settings =
    "run.epochs=90 run.log_every=10 optim.learning_rate=0.1 optim.momentum=0.9 optim.weight_decay=1e-4";
/// A tenth of the rate every 30 epochs, without a warm-up.
const EVERY_30: Settings = "schedule.kind=step schedule.step_epochs=30 schedule.gamma=0.1 schedule.interval=epoch \
     schedule.counted_from=warmup schedule.warmup_epochs=0";
/// The schedule of Goyal et al. (2017).
const AT_30_60_80: Settings =
    "schedule.kind=step schedule.milestones=30,60,80 schedule.gamma=0.1 schedule.warmup_epochs=5";
const DEEP: Settings = "model.depth=50";
/// Instead of 0, which stands for another rate.
const FROM_ZERO: Settings = "schedule.warmup_lr=1e-9";

const LOSS_SCALE: &str = "the loss scale of f16 adapts itself, which changes no number";

/// What most scripts do not have.
const PLAIN: Origin = Origin {
    name: "",
    script: "",
    batch: Batch::OfReplica,
    rate: Rate::Final,
    counts_machines: false,
    defaults: &[],
    networks: &[],
    scales_average: false,
    takes_directory: false,
    command: None,
    decouples_decay: false,
    words: &[],
    signature: "",
    differs: &[],
};

pub const ORIGINS: &[Origin] = &[
    Origin {
        name: "torchvision",
        script: "references/classification/train.py",
        defaults: &[PHOTOGRAPHS, SGD, EVERY_30, "parallel.batch_size=32"],
        scales_average: true,
        words: &[
            Alias::choice("--opt", "use --optimizer sgd, adamw or lars").of(&[
                ("sgd", "optim.optimizer=sgd"),
                ("sgd_nesterov", "optim.optimizer=sgd optim.nesterov=true"),
                ("adamw", "optim.optimizer=adamw"),
                ("rmsprop", "optim.optimizer=rmsprop optim.alpha=0.9 optim.eps=0.0316"),
            ]),
            Alias::switch(
                "--model-ema",
                Sets("optim.ema_decay=0.99998 optim.ema_every=32 optim.ema_after_warmup=true"),
            ),
            Alias::word("--model-ema-decay", Read(|value, line| Ok(ema_decay(value, line)))),
            Alias::word("--train-crop-size --val-resize-size --val-crop-size", Read(|_, line| sizes(line, SIZES))),
            Alias::switch("--use-v2", ALWAYS),
            Alias::word("--backend", Read(|value, _| Ok(decoder(value)))),
        ],
        signature: "--lr-scheduler --lr-step-size --lr-gamma --lr-min --lr-warmup-epochs --lr-warmup-method \
                    --lr-warmup-decay --auto-augment --cache-dataset --test-only",
        ..PLAIN
    },
    Origin {
        name: "timm",
        script: "train.py",
        rate: Rate::Of256(&["--lr-base"]),
        defaults: &[
            PHOTOGRAPHS,
            SGD,
            DEEP,
            "run.epochs=300 run.log_every=50 run.seed=42 data.center_crop=0.95 data.color_jitter=0.4 \
             data.erasing_fill=pixel data.interpolation=bicubic data.train_interpolation=random \
             data.drop_last=true model.zero_init_last_bn=true parallel.batch_size=128 parallel.bn_statistics=mean \
             optim.nesterov=true optim.weight_decay=2e-5 optim.decay_norm_bias=false optim.label_smoothing=0.1 \
             schedule.kind=cosine schedule.interval=epoch schedule.counted_from=start schedule.warmup_epochs=5 \
             schedule.warmup_lr=1e-5 schedule.step_epochs=90 checkpoint.keep_best=10",
        ],
        // How timm prepares images for weights that torchvision or its own earlier recipes have trained.
        networks: &[
            ("wide_resnet50_2", "data.center_crop=0.875"),
            ("wide_resnet101_2", "data.center_crop=0.875 data.interpolation=bilinear"),
            ("resnext101_32x8d", "data.center_crop=0.875 data.interpolation=bilinear"),
        ],
        takes_directory: true,
        words: &[
            Alias::choice("--opt", "'train --help' lists the choices of --optimizer").of(&[
                ("sgd nesterov", "optim.optimizer=sgd optim.nesterov=true"),
                ("momentum", "optim.optimizer=sgd optim.nesterov=false"),
                ("adam", "optim.optimizer=adam optim.nesterov=false"),
                ("adamw", "optim.optimizer=adamw optim.nesterov=false"),
                ("nadamw", "optim.optimizer=nadamw optim.nesterov=false"),
                ("rmsprop", "optim.optimizer=rmsprop optim.nesterov=false optim.alpha=0.9"),
                ("lars", "optim.optimizer=lars optim.nesterov=false"),
                ("lamb", "optim.optimizer=lamb optim.nesterov=false optim.eps=1e-6 optim.clip_grad_norm=1.0"),
            ]),
            Alias::word("--aa", Read(|value, _| Ok(policy(value)))),
            Alias::word("--color-jitter", Read(|value, line| Ok(jitter(value, line)))),
            Alias::word("--model-ema-decay", Read(|value, line| Ok(ema_decay(value, line)))),
            Alias::word("--warmup-lr", Read(|value, _| Ok(warmup_lr(value)))),
            Alias::word("--pretrained", Read(|value, line| Ok(pretrained(value, line)))),
            Alias::key("--lr-base", "optim.learning_rate"),
            Alias::key("--lr-base-scale", "schedule.lr_scaling"),
            Alias::word("--output-dir --experiment", Read(|_, line| Ok(directory(line)))),
        ],
        signature: "--sched --decay-epochs --decay-rate --min-lr --warmup-lr --cooldown-epochs --amp-dtype --clip-mode \
                    --aa --no-aug --mixup-prob --hflip --native-amp --no-prefetcher",
        differs: &[
            (
                Averages,
                "running statistics are averaged over replicas in all steps, as with --no-ddp-bb, not in the last one",
            ),
            (Word("--pretrained"), "pretrained weights are torchvision's, not timm's"),
            (Tag, "the tag behind the network's name sets nothing; use --crop-pct, --img-size and --interpolation"),
            (Word("--no-aug"), "training images are cut as those of validation, not from all of the shorter side"),
        ],
        ..PLAIN
    },
    Origin {
        name: "pytorch-examples",
        script: "imagenet/main.py",
        batch: Batch::OfMachine,
        counts_machines: true,
        defaults: &[PHOTOGRAPHS, SGD, EVERY_30, "parallel.batch_size=256"],
        takes_directory: true,
        words: &[
            Alias::switch("--multiprocessing-distributed", ALWAYS),
            // The fastest between GPUs.
            Alias::choice("--dist-backend", "use --dist-backend auto")
                .of(&[("nccl", "parallel.dist_backend=auto"), ("gloo", "parallel.dist_backend=gloo")]),
            Alias::switch("--no-accel", Sets("parallel.backend=flex")),
        ],
        differs: &[
            (All, "the devices are those of --gpu-ids, not all that there are"),
            (Word("--dummy"), "--dummy draws 2048 images of 10 classes, not 1281167 of 1000; see data.train_size"),
        ],
        ..PLAIN
    },
    Origin {
        name: "lightning",
        script: "examples/pytorch/domain_templates/imagenet.py",
        batch: Batch::OfMachine,
        defaults: &[PHOTOGRAPHS, SGD, EVERY_30, "parallel.batch_size=256 run.seed=42"],
        command: Some("fit"),
        words: &[
            Alias::word("model.arch", RESNET),
            Alias::key("model.data_path", "data.dir"),
            Alias::key("model.batch_size", "parallel.batch_size"),
            Alias::key("model.momentum", "optim.momentum"),
            Alias::key("model.weight_decay", "optim.weight_decay"),
            Alias::word("model.workers", COUNT),
            Alias::word("model.pretrained", Read(|value, line| Ok(pretrained(value, line)))),
            Alias::word("--optimizer", Read(|class, _| Ok(vec![("optim.optimizer", class.to_lowercase())]))),
            Alias::word("model.weights", Read(weights)),
        ],
        signature: "trainer.max_epochs trainer.devices trainer.num_nodes trainer.precision",
        differs: &[(
            Word("model.batch_size"),
            "data.batch_size counts the images of a replica, model.batch_size those of a machine",
        )],
        ..PLAIN
    },
    Origin {
        name: "apex",
        script: "examples/imagenet/main_amp.py",
        rate: Rate::Of256(&["--learning-rate"]),
        defaults: &[
            PHOTOGRAPHS,
            SGD,
            AT_30_60_80,
            FROM_ZERO,
            "parallel.batch_size=256 schedule.milestones=30,60,80,90,120,150,180,210,240,270",
        ],
        takes_directory: true,
        words: &[
            Alias::key("--b", "parallel.batch_size"),
            Alias::word("--loss-scale --static-loss-scale", Read(loss_scale)),
            Alias::switch("--dynamic-loss-scale", ALWAYS),
            Alias::only("--keep-batchnorm-fp32", "true", "batch-norm always computes in f32; remove it"),
            Alias::word("--prof", Nothing("use --profile, and --max-steps N for a part of a run")),
        ],
        signature: "--opt-level",
        differs: &[
            (All, "its warm-up is two steps ahead"),
            (Word("--loss-scale"), LOSS_SCALE),
            (Word("--static-loss-scale"), LOSS_SCALE),
        ],
        ..PLAIN
    },
    Origin {
        name: "horovod",
        script: "examples/pytorch/pytorch_imagenet_resnet50.py",
        rate: Rate::OfReplica,
        defaults: &[
            PHOTOGRAPHS,
            SGD,
            DEEP,
            AT_30_60_80,
            "run.seed=42 parallel.batch_size=32 optim.learning_rate=0.0125 schedule.warmup_start=0 \
             optim.weight_decay=5e-5",
        ],
        words: &[
            Alias::key("--base-lr", "optim.learning_rate"),
            Alias::word("--train-dir --val-dir", Read(split)),
            Alias::word("--val-batch-size", COUNT),
            Alias::word("--batches-per-allreduce", Read(accumulation)),
            Alias::switch("--fp16-allreduce", Sets("parallel.reduce_precision=bf16")),
            Alias::only("--gradient-predivide-factor", "1 1.0", "gradients are averaged; remove it"),
            Alias::switch("--use-adasum", Nothing("gradients are averaged; for large batches use --optimizer lars")),
            Alias::word("--log-dir", Read(|_, _| Ok(vec![("run.tensorboard", "true".into())]))),
            Alias::word("--checkpoint-format", Read(|_, _| Ok(Vec::new()))),
        ],
        differs: &[
            (All, "its warm-up is one step ahead"),
            (Word("--fp16-allreduce"), "--fp16-allreduce sends gradients in bf16"),
            (Word("--log-dir"), "--log-dir: TensorBoard's logs are in the run's directory"),
            (
                Word("--checkpoint-format"),
                "--checkpoint-format: checkpoints are in the run's directory, --output-dir DIR",
            ),
        ],
        ..PLAIN
    },
    Origin {
        name: "composer",
        script: "examples/imagenet/train_resnet_imagenet1k.py",
        batch: Batch::OfAll,
        defaults: &[
            PHOTOGRAPHS,
            SGD,
            DEEP,
            FROM_ZERO,
            "run.seed=17 data.drop_last=true parallel.batch_size=2048 optim.learning_rate=2.048 optim.momentum=0.875 \
             optim.weight_decay=5e-4 schedule.kind=cosine schedule.warmup_epochs=8",
        ],
        takes_directory: true,
        decouples_decay: true,
        words: &[
            Alias::key("--train-batch-size", "parallel.batch_size"),
            Alias::word("--eval-batch-size", COUNT),
            Alias::word(
                "--train-crop-size --eval-resize-size --eval-crop-size",
                Read(|_, line| sizes(line, COMPOSER_SIZES)),
            ),
            Alias::word("--max-duration", Read(|value, _| epochs("run.epochs", value))),
            Alias::word("--t-warmup", Read(|value, _| epochs("schedule.warmup_epochs", value))),
            Alias::word("--checkpoint-interval", Read(|value, _| interval(value))),
            Alias::key("--load-checkpoint-path", "checkpoint.resume"),
            Alias::choice("--loss-name", "use optim.loss=cross_entropy or bce")
                .of(&[("cross_entropy", ""), ("binary_cross_entropy", "optim.loss=bce")]),
            Alias::only("--t-max", "1dur", "the cosine ends with the run; use --epochs N"),
            Alias::only("--eval-interval", "1ep", "every epoch is validated; remove it"),
            Alias::key("--save-checkpoint-dir --run-name", "run.output_dir"),
            Alias::switch("--wandb-logger", Nothing(LOGS)),
            Alias::word("--recipe-name", Nothing("use --ema-decay, --label-smoothing and --mixup")),
        ],
        differs: &[
            (All, "its convolutions and batch-norm start from other random weights, and on a GPU it trains in f16"),
            (All, "its decay is decoupled from the rate; the sum over a run is about the same here"),
        ],
        ..PLAIN
    },
];
