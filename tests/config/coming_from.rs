//! What people who come from other trainers type: it works as it is, or its refusal names what does.

use std::collections::BTreeSet;

use kiln::config::alias;
use kiln::config::flag;
use kiln::config::schema::Schema;
use proptest::prelude::*;

use super::{Cli, Request, complaint, complaints, config, resolve};

const SCRIPT: &str = "DDP script";
pub(super) const PYTORCH: &str = "PyTorch, torchvision";
const TORCHRUN: &str = "torchrun";
const LIGHTNING: &str = "Lightning";
const HYDRA: &str = "Hydra template";
pub(super) const TIMM: &str = "timm";
const HUGGING_FACE: &str = "Hugging Face";
const TENSORFLOW: &str = "tf.distribute";
const MEGATRON: &str = "Megatron-LM";

/// Where a spelling comes from, the spelling, and Kiln's own. Both mean the same.
pub(super) const SAME: &[(&str, &str, &str)] = &[
    (
        SCRIPT,
        "--epochs 50 --batch_size 64 --gpu_ids 0,1 --world_size 2",
        "--epochs 50 --batch-size 64 --gpu-ids 0,1 --world-size 2",
    ),
    (SCRIPT, "--gpu 0 --lr 0.1", "--gpu-ids 0 --learning-rate 0.1"),
    (SCRIPT, "--rank 1 --world-size 2 --dist-url tcp://n:1", "--rank 1 --world-size 2 --dist-url tcp://n:1"),
    (SCRIPT, "--dist-url env://", ""),
    (SCRIPT, "--model_name resnet18 --no-cuda", "--stem imagenet --backend flex"),
    (SCRIPT, "--resume runs/0001", "--resume=runs/0001"),
    (SCRIPT, "--sync_bn --seed 1", "--sync-bn --seed 1"),
    (PYTORCH, "-b 64 --wd 1e-4", "--batch-size 64 --weight-decay 1e-4"),
    (PYTORCH, "-a resnet18", "--stem imagenet"),
    (PYTORCH, "-a resnet34", "--stem imagenet --depth 34"),
    (PYTORCH, "-a resnet50", "--stem imagenet --depth 50"),
    (PYTORCH, "-a resnet101", "--stem imagenet --depth 101"),
    (PYTORCH, "-a resnet152", "--stem imagenet --depth 152"),
    (PYTORCH, "--arch wide_resnet50_2", "--stem imagenet --depth 50 --width-per-group 128"),
    (PYTORCH, "--arch wide_resnet101_2", "--stem imagenet --depth 101 --width-per-group 128"),
    (PYTORCH, "-a resnext50_32x4d", "--stem imagenet --depth 50 --groups 32 --width-per-group 4"),
    (PYTORCH, "-a resnext101_32x8d", "--stem imagenet --depth 101 --groups 32 --width-per-group 8"),
    (PYTORCH, "-a resnext101_64x4d", "--stem imagenet --depth 101 --groups 64 --width-per-group 4"),
    (PYTORCH, "-j 8 -p 100", "--log-every 100"),
    (PYTORCH, "--cache-dataset --use-deterministic-algorithms", "--deterministic"),
    (PYTORCH, "--amp", "--precision f16 run.half_if_fast=true"),
    (PYTORCH, "--opt-level O1 --dummy", "--precision f16 run.half_if_fast=true --data synthetic"),
    (PYTORCH, "--opt sgd_nesterov", "--optimizer sgd --nesterov"),
    (
        PYTORCH,
        "--lr-scheduler steplr --lr-step-size 30 --lr-gamma 0.1",
        "--schedule step schedule.step_epochs=30 schedule.gamma=0.1 schedule.counted_from=warmup schedule.interval=epoch",
    ),
    (
        PYTORCH,
        "--lr-scheduler cosineannealinglr --lr-min 1e-5",
        "--schedule cosine schedule.final_lr=1e-5 schedule.counted_from=warmup schedule.interval=epoch",
    ),
    (
        PYTORCH,
        "--lr-scheduler exponentiallr --lr-gamma 0.9",
        "--schedule step schedule.step_epochs=1 schedule.gamma=0.9 schedule.counted_from=warmup schedule.interval=epoch",
    ),
    (
        PYTORCH,
        "--lr-warmup-epochs 5",
        "--warmup-epochs 5 schedule.warmup_start=0.01 schedule.warmup_shape=constant schedule.interval=epoch",
    ),
    (
        PYTORCH,
        "--lr-warmup-epochs 5 --lr-warmup-method linear",
        "--warmup-epochs 5 schedule.warmup_start=0.01 schedule.interval=epoch",
    ),
    (PYTORCH, "--lr-warmup-decay 0.1", "schedule.warmup_start=0.1"),
    (PYTORCH, "--auto-augment ra --ra-magnitude 7", "--rand-augment-ops 2 --rand-augment-magnitude 7"),
    (PYTORCH, "--mixup-alpha 0.2 --cutmix-alpha 1", "--mixup 0.2 --cutmix 1"),
    (PYTORCH, "--random-erase 0.1", "--random-erasing 0.1"),
    (
        PYTORCH,
        "--norm-weight-decay 0 --bias-weight-decay 1e-4",
        "optim.norm_weight_decay=0 optim.bias_weight_decay=1e-4",
    ),
    (PYTORCH, "--ra-sampler --ra-reps 4", "--repeated-augmentation 4"),
    (PYTORCH, "--weights ResNet18_Weights.IMAGENET1K_V1", "--pretrained=torchvision"),
    (PYTORCH, "--model-ema-steps 32 --model-ema-decay 0.999", "--ema-decay 0.999 optim.ema_every=32"),
    (PYTORCH, "--print-freq 10 --data-path photos", "--log-every 10 --data-dir photos"),
    (PYTORCH, "--device cpu", "--backend flex"),
    (
        TORCHRUN,
        "--node_rank 1 --nnodes 2 --world-size 2 --dist-url tcp://n:1",
        "--rank 1 --nnodes 2 --world-size 2 --dist-url tcp://n:1",
    ),
    (TORCHRUN, "--nproc_per_node 1 --standalone --local_rank 0", ""),
    (
        TORCHRUN,
        "--master_addr n --master_port 1 --node_rank 1 --world-size 2",
        "--dist-url tcp://n:1 --rank 1 --world-size 2",
    ),
    (
        TORCHRUN,
        "--rdzv_endpoint n:1 --rdzv_backend c10d --rdzv_id a --world-size 2",
        "--dist-url tcp://n:1 --job-id a --world-size 2",
    ),
    (LIGHTNING, "--trainer.max_epochs 3", "--epochs 3"),
    (LIGHTNING, "max_epochs=3 precision=16", "--epochs 3 --precision f16 run.half_if_fast=true"),
    (LIGHTNING, "--max_epochs 3 --accumulate_grad_batches 2", "--epochs 3 --accumulation-steps 2"),
    (LIGHTNING, "gpus=[0,1] distributed_backend=dp", "--world-size 2 --gpu-ids 0,1 --strategy ddp"),
    (LIGHTNING, "--gpus 2 --distributed_backend ddp", "--world-size 2 --gpu-ids 0,1 --strategy ddp"),
    (
        LIGHTNING,
        "gpus=8 nb_gpu_nodes=12 --dist-url tcp://n:1",
        "--world-size 96 --gpu-ids 0,1,2,3,4,5,6,7 --nnodes 12 --dist-url tcp://n:1",
    ),
    (LIGHTNING, "use_amp=true amp_level=O2", "--precision f16 run.half_if_fast=true"),
    (LIGHTNING, "trainer.amp_level=O0", "--precision f32"),
    (LIGHTNING, "trainer.max_epochs=3 trainer.max_steps=-1", "--epochs 3 --max-steps 0"),
    (LIGHTNING, "trainer.max_time=00:12:30:00", "--max-time 12h30m"),
    (LIGHTNING, "trainer.precision=16-mixed", "--precision f16 run.half_if_fast=true"),
    (LIGHTNING, "trainer.precision=bf16-mixed", "--precision bf16 run.half_if_fast=true"),
    (LIGHTNING, "trainer.precision=32-true", "--precision f32"),
    (LIGHTNING, "trainer.accumulate_grad_batches=4", "--accumulation-steps 4"),
    (LIGHTNING, "trainer.gradient_clip_val=1", "--clip-grad-norm 1"),
    (LIGHTNING, "trainer.gradient_clip_val=1 trainer.gradient_clip_algorithm=value", "--clip-grad-value 1"),
    (LIGHTNING, "trainer.devices=2 trainer.strategy=ddp", "--world-size 2 --gpu-ids 0,1 --strategy ddp"),
    (LIGHTNING, "trainer.devices=[0,2] trainer.strategy=auto", "--world-size 2 --gpu-ids 0,2"),
    (LIGHTNING, "trainer.strategy=ddp_find_unused_parameters_false", "--strategy ddp"),
    (LIGHTNING, "trainer.sync_batchnorm=True trainer.deterministic=True", "--sync-bn --deterministic"),
    (LIGHTNING, "trainer.limit_train_batches=10 trainer.limit_val_batches=1.0", "--limit-train-batches 10"),
    (LIGHTNING, "trainer.fast_dev_run=true", "--fast-dev-run"),
    (LIGHTNING, "trainer.accelerator=cpu", "--backend flex"),
    (LIGHTNING, "trainer.accelerator=gpu", "--backend cuda"),
    (LIGHTNING, "trainer.default_root_dir=out", "--output-dir out"),
    (LIGHTNING, "trainer.log_every_n_steps=50", "--log-every 50"),
    (LIGHTNING, "trainer.num_sanity_val_steps=0 trainer.max_time=null", ""),
    (LIGHTNING, "trainer.enable_progress_bar=false trainer.profiler=simple", "--progress plain --profile"),
    (LIGHTNING, "--seed_everything=1", "--seed 1"),
    (HYDRA, "data.num_workers=4 data.pin_memory=True", ""),
    (HYDRA, "seed=1 model.optimizer.lr=0.05", "--seed 1 --learning-rate 0.05"),
    (HYDRA, "lr=0.05", "--learning-rate 0.05"),
    (HYDRA, "optim.lr=0.05", "--learning-rate 0.05"),
    (HYDRA, "++trainer.max_epochs=3", "--epochs 3"),
    (HYDRA, "ckpt_path=last", "--resume"),
    (HYDRA, "ckpt_path=runs/last/checkpoints/best", "--resume=runs/last/checkpoints/best"),
    (HYDRA, "data.batch_size=64", "--batch-size 64"),
    (HYDRA, "debug=fdr", "--fast-dev-run"),
    (HYDRA, "logger=tensorboard", "--tensorboard"),
    (HYDRA, "hydra.run.dir=out", "--output-dir out"),
    (HYDRA, "callbacks.early_stopping.patience=5", "--early-stopping 5"),
    (HYDRA, "callbacks.model_checkpoint.save_top_k=3", "--keep-best 3"),
    (HYDRA, "trainer=cpu", "--backend flex --strategy single"),
    (HYDRA, "trainer=ddp_sim", "--backend flex --strategy ddp --world-size 2 --gpu-ids 0,1"),
    (
        TIMM,
        "--opt momentum --sched cosine",
        "--optimizer sgd --schedule cosine schedule.counted_from=start schedule.interval=epoch",
    ),
    (
        TIMM,
        "--sched step --decay-epochs 30 --decay-rate 0.1",
        "--schedule step schedule.step_epochs=30 schedule.gamma=0.1 schedule.counted_from=start schedule.interval=epoch",
    ),
    (
        TIMM,
        "--sched multistep --decay-milestones 30 60",
        "--schedule step schedule.milestones=29,59 schedule.counted_from=start schedule.interval=epoch",
    ),
    (TIMM, "--warmup-lr 1e-5", "schedule.warmup_lr=1e-5"),
    (TIMM, "--hflip 0.5 --input-size 3 224 224", "--image-size 224"),
    (TIMM, "--native-amp", "--precision f16 run.half_if_fast=true"),
    (TIMM, "--workers 8 --pin-mem --channels-last --torchcompile --no-prefetcher", ""),
    (TIMM, "--save-every 2 --cooldown-epochs 0", "--checkpoint-every 2epochs"),
    (TIMM, "--color-jitter 0.4", "data.color_jitter=0.4"),
    (TIMM, "--grad-accum-steps 4", "--accumulation-steps 4"),
    (TIMM, "--amp --amp-dtype bfloat16", "--precision bf16 run.half_if_fast=true"),
    (TIMM, "--clip-grad 1", "--clip-grad-norm 1"),
    (TIMM, "--clip-grad 1 --clip-mode value", "--clip-grad-value 1"),
    (TIMM, "--model-ema", "--ema-decay 0.9998"),
    (TIMM, "--model-ema --model-ema-decay 0.999", "--ema-decay 0.999"),
    (TIMM, "--crop-pct 0.875", "--center-crop 0.875"),
    (TIMM, "--smoothing 0.1 --reprob 0.25", "--label-smoothing 0.1 --random-erasing 0.25"),
    (TIMM, "--mixup 0.2 --mixup-prob 0.5", "--mixup 0.2 data.mix_prob=0.5"),
    (TIMM, "--no-aug", "data.augment=false"),
    (TIMM, "--pretrained --img-size 224", "--pretrained=torchvision --image-size 224"),
    (TIMM, "--dataset torch/cifar10 --dataset-download", "--data cifar10 --download"),
    (TIMM, "--num-classes 10 --checkpoint-hist 5", "model.num_classes=10 --keep-best 5"),
    (TIMM, "--bce-loss --bce-target-thresh 0.2", "optim.loss=bce optim.bce_threshold=0.2"),
    (TIMM, "--drop-path 0.05", "model.drop_path=0.05"),
    (TIMM, "--opt lamb", "--optimizer lamb optim.eps=1e-6 --clip-grad-norm 1"),
    (TIMM, "--opt-eps 1e-7 --opt-betas 0.9 0.98", "optim.eps=1e-7 optim.beta1=0.9 optim.beta2=0.98"),
    (TIMM, "--scale 0.2 1.0 --ratio 0.75 1.3333", "--resized-crop 0.2"),
    (TIMM, "--mean 0.5 0.5 0.5 --std 0.25 0.25 0.25", "data.normalization=0.5,0.5,0.5/0.25,0.25,0.25"),
    (TIMM, "--initial-checkpoint w.pth --dist-bn reduce -vb 64", "--pretrained=w.pth"),
    (TIMM, "--recovery-interval 500 --drop 0 --gp avg", "--checkpoint-every 500steps"),
    (TIMM, "--output out --log-interval 50", "--output-dir out --log-every 50"),
    (HUGGING_FACE, "--num_train_epochs 3 --per_device_train_batch_size 8", "--epochs 3 --batch-size 8"),
    (HUGGING_FACE, "--gradient_accumulation_steps 4 --max_grad_norm 1", "--accumulation-steps 4 --clip-grad-norm 1"),
    (HUGGING_FACE, "--mixed_precision bf16", "--precision bf16 run.half_if_fast=true"),
    (HUGGING_FACE, "--dataloader_num_workers 4", ""),
    (HUGGING_FACE, "--bf16 --logging_steps 5", "--precision bf16 run.half_if_fast=true --log-every 5"),
    (TENSORFLOW, "--num_gpus 2 --distribution_strategy mirrored", "--world-size 2 --gpu-ids 0,1 --strategy ddp"),
    (TENSORFLOW, "--distribution_strategy one_device", "--strategy single"),
    (TENSORFLOW, "--distribution_strategy MultiWorkerMirroredStrategy", "--strategy ddp"),
    (TENSORFLOW, "--train_epochs 90 --dtype bf16", "--epochs 90 --precision bf16 run.half_if_fast=true"),
    (TENSORFLOW, "--model_dir out --use_synthetic_data", "--output-dir out --data synthetic"),
    (MEGATRON, "--pipeline-model-parallel-size 2", "--stages 2"),
    (MEGATRON, "--use-distributed-optimizer", "--shard-optimizer"),
];

/// The same where the spelling is refused with words that name Kiln's.
const REFUSED: &[(&str, &str, &str)] = &[
    (PYTORCH, "--opt sgd", "--optimizer sgd"),
    (PYTORCH, "-j many", "--threads N"),
    (PYTORCH, "--multiprocessing-distributed", "--as pytorch-examples"),
    (PYTORCH, "--start-epoch 3", "--resume"),
    (PYTORCH, "--backend nccl", "--dist-backend nccl"),
    (PYTORCH, "-a vgg16", "wide_resnet50_2"),
    (PYTORCH, "photos/imagenet", "--data folder --data-dir photos/imagenet"),
    (TORCHRUN, "--nnodes 1:4", "--elastic 1:4"),
    (TORCHRUN, "--max-restarts 3", "--elastic MIN:MAX"),
    (TORCHRUN, "--rdzv_backend etcd", "--dist-url tcp://HOST:PORT"),
    (LIGHTNING, "trainer.num_sanity_val_steps=2", "--dry-run"),
    (LIGHTNING, "trainer.check_val_every_n_epoch=5", "--limit-val-batches N"),
    (LIGHTNING, "trainer.limit_train_batches=0.1", "--limit-train-batches 10"),
    (LIGHTNING, "trainer.strategy=fsdp", "--strategy ddp"),
    (LIGHTNING, "trainer.strategy=deepspeed", "--strategy ddp"),
    (LIGHTNING, "distributed_backend=ddp2", "--strategy ddp"),
    (LIGHTNING, "amp_level=O3", "--precision f16"),
    (LIGHTNING, "gpus=-1", "--gpu-ids 0,1"),
    (LIGHTNING, "auto_lr_find=true", "train find lr -- ARGUMENTS"),
    (LIGHTNING, "trainer.devices=auto", "--gpu-ids 0,1"),
    (LIGHTNING, "trainer.max_time=soon", "--max-time 12h"),
    (LIGHTNING, "trainer.precision=64-true", "f32, bf16 or f16"),
    (HYDRA, "logger=wandb", "--tensorboard"),
    (TIMM, "--wandb", "--tensorboard"),
    (TIMM, "--logger wandb", "--tensorboard"),
    (TIMM, "--log-dir logs", "--output-dir DIR"),
    (TIMM, "--cooldown-epochs 5", "--epochs"),
    (TIMM, "--lr-base 0.1", "--as timm"),
    (TIMM, "--input-size 3 224 192", "--image-size 224"),
    (HYDRA, "data.batch_size=64 trainer.devices=2", "--batch-size 32"),
    (HYDRA, "trainer=mps", "available: cpu, ddp, ddp_sim, dp, gpu and single"),
    (TIMM, "--aa rand-m9-n2", "--rand-augment-ops 2 --rand-augment-magnitude 27"),
    (TIMM, "--clip-grad 1 --clip-mode agc", "--clip-grad-norm"),
    (TIMM, "--sched plateau", "--schedule"),
    (TIMM, "--drop-block 0.1", "--drop-path P"),
    (TIMM, "--jsd-loss", "--label-smoothing X"),
    (TIMM, "--patience-epochs 10", "--early-stopping EPOCHS"),
    (TIMM, "--layer-decay 0.7", "--backbone-lr-scale X"),
    (TIMM, "--log-wandb", "--tensorboard"),
    (TENSORFLOW, "--distribution_strategy parameter_server", "--strategy ddp"),
    (TENSORFLOW, "--strategy MirroredStrategy", "--strategy ddp"),
    (HUGGING_FACE, "--num_processes 2", "train launch --nproc N -- ARGUMENTS"),
];

/// Arguments of `train` that mean one of its commands.
const COMMANDS: &[(&str, &str, &str)] = &[
    (PYTORCH, "--resume runs/0001 --evaluate", "evaluate --checkpoint runs/0001"),
    (TORCHRUN, "--nproc_per_node 2 --epochs 3", "launch --nproc 2 -- --epochs 3"),
    (
        TORCHRUN,
        "--nproc_per_node=2 --nnodes=2 --node_rank=1 --master_addr=n --master_port=1 --epochs 3",
        "launch --nproc 2 --nnodes 2 --node-rank 1 --master-addr n --master-port 1 -- --epochs 3",
    ),
    (HYDRA, "-m optim.lr=0.1,0.2 run.epochs=3", "sweep optim.lr=0.1,0.2 -- run.epochs=3"),
    (
        HYDRA,
        "--multirun hydra.sweep.dir=out run.seed=1,2 experiment=quickstart --lr 0.1",
        "sweep --output-dir out run.seed=1,2 -- experiment=quickstart --lr 0.1",
    ),
    (
        HYDRA,
        "-m hydra.sweeper.n_trials=9 hydra.launcher.n_jobs=2 optim.momentum=interval(0.5,0.9) run.epochs=3",
        "sweep --samples 9 --jobs 2 optim.momentum=interval(0.5,0.9) -- run.epochs=3",
    ),
];

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn what_is_typed_elsewhere_is_what_is_typed_here() {
    for (from, theirs, ours) in SAME {
        assert_eq!(config(&words(theirs)), config(&words(ours)), "{from}: {theirs}");
    }
}

#[test]
fn options_that_mean_a_command_are_that_command() {
    let parse = |line: &str| format!("{:?}", Cli::try_parse_from([&["train"], &words(line)[..]].concat()).unwrap());
    for (from, theirs, ours) in COMMANDS {
        assert_eq!(parse(theirs), parse(ours), "{from}: {theirs}");
    }
}

#[test]
fn what_differs_is_refused_and_the_refusal_names_what_to_use() {
    for (from, theirs, ours) in REFUSED {
        let line = complaint(&words(theirs));
        assert!(line.contains(ours) && line.contains("; "), "{from}: {theirs}: {line}");
    }
}

/// The rows of the guide's table: where from, what is typed there, Kiln's own spelling.
fn rows(page: &str) -> Vec<[String; 3]> {
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_string()).collect();
    let rows = page.lines().filter(|line| line.starts_with('|')).map(cells);
    rows.skip(2).map(|cells: Vec<String>| cells.try_into().expect("three cells")).collect()
}

#[test]
fn the_guide_has_every_row_and_no_other() {
    let rows = rows(include_str!("../../src/guide/coming_from.md"));
    assert_eq!(rows.len(), SAME.len() + REFUSED.len() + COMMANDS.len());
    let plain = |cell: &str| cell.trim_matches('`').to_string();
    let mut from = String::new();
    for [source, theirs, ours] in rows {
        // A group names its source once.
        from = if source.is_empty() { from } else { source };
        let (list, ours) = match (ours.strip_prefix("refused: "), &*ours) {
            (Some(ours), _) => (REFUSED, ours.to_string()),
            (None, "the default") => (SAME, String::new()),
            (None, ours) if ours.starts_with("`train ") => (COMMANDS, ours.replacen("train ", "", 1)),
            (None, _) => (SAME, ours),
        };
        let row = (from.as_str(), &*plain(&theirs), &*plain(&ours));
        assert!(list.contains(&row), "no test proves {row:?}");
    }
}

#[test]
fn every_spelling_of_others_is_new_and_means_a_key_that_exists() {
    let schema = Schema::new();
    let keys: BTreeSet<String> = schema.keys().collect();
    let longs: BTreeSet<&str> = flag::all().flat_map(|flag| flag.aliases.iter().chain([&flag.long])).copied().collect();
    let mut seen = BTreeSet::new();
    for alias in alias::all() {
        assert!(seen.insert(alias.name), "{} is listed twice", alias.name);
        assert!(!keys.contains(alias.name), "{} is a key", alias.name);
        let long = alias.name.strip_prefix("--");
        assert!(long.is_none_or(|long| !longs.contains(long)), "{} is a flag", alias.name);
        for key in alias.keys() {
            assert!(keys.contains(key), "{} sets {key}", alias.name);
        }
    }
}

#[test]
fn what_is_spelled_in_kilns_way_wins() {
    for line in
        ["trainer.max_epochs=3 run.epochs=4", "run.epochs=4 trainer.max_epochs=3", "--epochs 4 trainer.max_epochs=3"]
    {
        assert_eq!(config(&words(line)).run.epochs, 4, "{line}");
    }
    assert_eq!(config(&words("trainer.max_epochs=3 trainer.max_epochs=4")).run.epochs, 4, "the later one");
    assert_eq!(config(&words("--precision f32 --amp")), config(&[]));
    assert_eq!(config(&words("--amp --precision bf16")), config(&words("--precision bf16")));
    assert_eq!(config(&words("--amp-dtype bfloat16 --amp")), config(&words("--amp --amp-dtype bfloat16")));
}

#[test]
fn a_group_of_the_users_own_may_be_called_as_a_word_of_others() {
    let dir = tempfile::tempdir().unwrap();
    super::write(dir.path(), "logger/mine.toml", "[run]\nseed = 7\n");
    let dir = dir.path().to_str().unwrap();
    assert_eq!(config(&["--config-dir", dir, "logger=mine"]).run.seed, 7);
}

#[test]
fn every_complaint_about_foreign_words_comes_at_once_with_all_others() {
    let lines = complaints(&words("trainer.devices=x --workers x --batch-size 0 trainer.max_epochs=x run.sede=1"));
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("epochs must be a whole number") && line.contains("'trainer.max_epochs=x'"))
    );
}

proptest! {
    #[test]
    fn no_value_whatever_makes_a_foreign_word_panic(value in ".*", other in "[0-9:,.\\[\\]-]{0,20}", which in 0_usize..500) {
        let words: Vec<_> = alias::all().filter(|alias| !alias.name.starts_with('-')).collect();
        let word = words[which % words.len()].name;
        for value in [value, other] {
            drop(resolve(&Request { arguments: vec![format!("{word}={value}")], ..Request::default() }));
        }
    }
}
