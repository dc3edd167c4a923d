//! Keys of Lightning before version 1.7, and of PyTorch Lightning's first versions; most have other names today.

use super::Means::{Choice, Nothing, Read};
use super::placement::{GPUS, LEGACY_NODES, gpus, machines};
use super::{AMP_LEVEL, Alias, F16, F32};

const SHARE: &str = "name the devices, as in --gpu-ids 0,1";

pub(super) const WORDS: &[Alias] = &[
    Alias::word(GPUS, Read(gpus)),
    Alias::word("trainer.nb_gpus", Read(gpus)),
    Alias::word(LEGACY_NODES, Read(machines)),
    Alias::word(
        "trainer.distributed_backend",
        Choice(
            &[
                ("dp", &[("parallel.strategy", "ddp")]),
                ("ddp", &[("parallel.strategy", "ddp")]),
                ("ddp_spawn", &[("parallel.strategy", "ddp")]),
                ("ddp_cpu", &[("parallel.strategy", "ddp"), ("parallel.backend", "flex")]),
            ],
            "ddp2 splits a machine's batch over its devices; use --strategy ddp with a --batch-size per device",
        ),
    ),
    Alias::word("trainer.use_amp", Choice(&[("true", F16), ("false", F32)], "use --precision f16, bf16 or f32")),
    Alias::word("trainer.amp_level", AMP_LEVEL),
    Alias::word(
        "trainer.amp_backend",
        Choice(&[("native", &[]), ("apex", &[])], "Kiln has its own mixed precision; use --precision f16 or bf16"),
    ),
    Alias::key("trainer.max_nb_epochs", "run.epochs"),
    Alias::key("trainer.gradient_clip", "optim.clip_grad_norm"),
    Alias::key("trainer.default_save_path", "run.output_dir"),
    Alias::key("trainer.row_log_interval", "run.log_every"),
    Alias::key("trainer.resume_from_checkpoint", "checkpoint.resume"),
    Alias::word(
        "trainer.auto_lr_find",
        Choice(&[("false", &[])], "find a learning rate before training with 'train find lr -- ARGUMENTS'"),
    ),
    Alias::word(
        "trainer.auto_scale_batch_size",
        Choice(&[("false", &[])], "find a batch size before training with 'train find batch-size -- ARGUMENTS'"),
    ),
    Alias::word("trainer.auto_select_gpus", Choice(&[("false", &[])], SHARE)),
    Alias::word("trainer.benchmark", Nothing("remove it: the backend chooses kernels")),
    Alias::word("trainer.tpu_cores", Nothing("'train doctor' lists the devices")),
];
