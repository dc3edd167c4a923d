//! Every option of torchvision's and timm's training scripts has a meaning or an answer.

use kiln::config::resolve;
use kiln_system::Error;

use super::request;

/// The options of torchvision's `references/classification/train.py`, each with a value.
const TORCHVISION: &str = "\
--data-path d|--model resnet50|--device cpu|-b 8|--batch-size 8|--epochs 3|-j 4|--workers 4|--opt sgd|--lr 0.1|\
--momentum 0.9|--wd 1e-4|--weight-decay 1e-4|--norm-weight-decay 0|--bias-weight-decay 0|\
--transformer-embedding-decay 0|--label-smoothing 0.1|--mixup-alpha 0.2|--cutmix-alpha 1|--lr-scheduler steplr|\
--lr-warmup-epochs 1|--lr-warmup-method linear|--lr-warmup-decay 0.01|--lr-step-size 30|--lr-gamma 0.1|--lr-min 0|\
--print-freq 10|--output-dir o|--start-epoch 1|--cache-dataset|--sync-bn|--test-only|--auto-augment ra|\
--ra-magnitude 9|--augmix-severity 3|--random-erase 0.1|--amp|--world-size 1|--dist-url env://|--model-ema|\
--model-ema-steps 32|--model-ema-decay 0.999|--use-deterministic-algorithms|--interpolation bilinear|\
--val-resize-size 256|--val-crop-size 224|--train-crop-size 224|--clip-grad-norm 1|--ra-sampler|--ra-reps 3|\
--weights ResNet50_Weights.IMAGENET1K_V1|--backend PIL|--use-v2|--pretrained";

/// Those of timm's `train.py`.
const TIMM: &str = "\
--data-dir d|--dataset torch/cifar10|--train-split train|--val-split validation|--train-num-samples 9|\
--val-num-samples 9|--dataset-download|--class-map m|--input-img-mode RGB|--input-key k|--target-key k|\
--dataset-trust-remote-code|--model resnet50|--pretrained|--pretrained-path p|--initial-checkpoint p|\
--no-resume-opt|--num-classes 10|--gp avg|--img-size 64|--in-chans 3|--input-size 3 64 64|--crop-pct 0.9|\
--mean 0.5 0.5 0.5 --std 0.5 0.5 0.5|--interpolation bilinear|-b 8|--batch-size 8|-vb 8|--validation-batch-size 8|\
--channels-last|--fuser te|--grad-accum-steps 2|--grad-checkpointing|--fast-norm|--model-kwargs a=1|\
--head-init-scale 1|--head-init-bias 0|--torchcompile-mode m|--torchscript|--torchcompile|--device cpu|--amp|\
--amp-dtype float16|--model-dtype float32|--no-ddp-bb|--synchronize-step|--local_rank 0|--device-modules m|--opt sgd|\
--opt-eps 1e-8|--opt-betas 0.9 0.99|--momentum 0.9|--weight-decay 2e-5|--clip-grad 1|--clip-mode norm|\
--layer-decay 0.7|--layer-decay-min-scale 0|--layer-decay-no-opt-scale 0|--opt-kwargs a=1|--sched cosine|\
--sched-on-updates|--lr 0.1|--lr-base 0.1|--lr-base-size 256|--lr-base-scale sqrt|--lr-noise 0.4|--lr-noise-pct 0.6|\
--lr-noise-std 1|--lr-cycle-mul 1|--lr-cycle-decay 0.5|--lr-cycle-limit 1|--lr-k-decay 1|--warmup-lr 1e-5|--min-lr 0|\
--epochs 9|--epoch-repeats 0|--start-epoch 1|--decay-milestones 3 6|--decay-epochs 3|--warmup-epochs 1|\
--warmup-prefix|--cooldown-epochs 0|--patience-epochs 10|--decay-rate 0.1|--dr 0.1|--no-aug|--train-crop-mode rrc|\
--scale 0.08 1.0|--ratio 0.75 1.3333|--hflip 0.5|--vflip 0|--color-jitter 0.4|--color-jitter-prob 1|\
--grayscale-prob 0|--gaussian-blur-prob 0|--aa rand-m9-mstd0.5-inc1|--aug-repeats 3|--aug-splits 3|--jsd-loss|\
--bce-loss|--bce-sum|--bce-target-thresh 0.2|--bce-pos-weight 1|--reprob 0.2|--remode pixel|--recount 1|--resplit|\
--mixup 0.2|--cutmix 1|--cutmix-minmax 0.2 0.8|--mixup-prob 1|--mixup-switch-prob 0.5|--mixup-mode batch|\
--mixup-off-epoch 0|--smoothing 0.1|--train-interpolation random|--drop 0|--drop-connect 0|--drop-path 0|\
--drop-block 0|--bn-momentum 0.1|--bn-eps 1e-5|--sync-bn|--dist-bn reduce|--split-bn|--model-ema|\
--model-ema-force-cpu|--model-ema-decay 0.999|--model-ema-warmup|--seed 1|--worker-seeding all|--log-interval 50|\
--val-interval 1|--recovery-interval 0|--checkpoint-hist 10|-j 4|--workers 4|--save-images|--pin-mem|--no-prefetcher|\
--output o|--experiment e|--eval-metric top1|--tta 0|--use-multi-epochs-loader|--log-wandb|--wandb-project p|\
--wandb-tags t|--wandb-resume-id i|--train-img-sizes 160 224|--train-batch-sizes 8 8|--train-size-probs 0.5 0.5|\
--train-size-schedule constant|--train-batches-per-epoch 9|--kd-model-name m|--naflex-loader";

/// Options that are refused as they stand, each with what Kiln has instead.
#[test]
fn every_option_of_torchvision_and_timm_has_a_meaning_or_an_answer() {
    let mut answers = [0, 0];
    for (origin, options) in [("torchvision", TORCHVISION), ("timm", TIMM)] {
        for option in options.split('|') {
            let line: Vec<_> = ["--as", origin].into_iter().chain(option.split(' ')).collect();
            let lines = match kiln::cli::Cli::try_parse_from([&["train"], &line[..]].concat()) {
                Ok(kiln::cli::Command::Evaluate(_)) => Ok(()),
                Ok(_) => resolve(&request(&line)).map(drop),
                Err(error) => Err(error),
            };
            match lines {
                Ok(()) => answers[0] += 1,
                Err(Error::Usage(lines)) => {
                    answers[1] += 1;
                    assert_eq!(lines.len(), 1, "{origin} {option}: {lines:?}");
                    assert!(lines[0].contains("; ") && !lines[0].contains("lists all options"), "{option}: {lines:?}");
                }
                Err(other) => panic!("{origin} {option}: {other}"),
            }
        }
    }
    assert!(answers.iter().sum::<usize>() > 200, "{answers:?}");
}
