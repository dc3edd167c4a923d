//! Keys of Lightning before version 1.7, and of PyTorch Lightning's first versions; most have other names today.

use super::Means::{Nothing, Read};
use super::placement::{GPUS, LEGACY_NODES, gpus, machines};
use super::{AMP_LEVEL, Alias, F16, F32};

pub(super) const WORDS: &[Alias] = &[
    Alias::word(GPUS, Read(gpus)),
    Alias::word("trainer.nb_gpus", Read(gpus)),
    Alias::word(LEGACY_NODES, Read(machines)),
    Alias::choice(
        "trainer.distributed_backend",
        "ddp2 splits a machine's batch over its devices; use --strategy ddp with a --batch-size per device",
    )
    .of(&[("dp ddp ddp_spawn", "parallel.strategy=ddp"), ("ddp_cpu", "parallel.strategy=ddp parallel.backend=flex")]),
    Alias::choice("trainer.use_amp", "use --precision f16, bf16 or f32").of(&[("true", F16), ("false", F32)]),
    Alias::word("trainer.amp_level", AMP_LEVEL),
    Alias::only("trainer.amp_backend", "native apex", "Kiln has its own mixed precision; use --precision f16 or bf16"),
    Alias::key("trainer.max_nb_epochs", "run.epochs"),
    Alias::key("trainer.gradient_clip", "optim.clip_grad_norm"),
    Alias::key("trainer.default_save_path", "run.output_dir"),
    Alias::key("trainer.row_log_interval", "run.log_every"),
    Alias::key("trainer.resume_from_checkpoint", "checkpoint.resume"),
    Alias::only(
        "trainer.auto_lr_find",
        "false",
        "find a learning rate before training with 'train find lr -- ARGUMENTS'",
    ),
    Alias::only(
        "trainer.auto_scale_batch_size",
        "false",
        "find a batch size before training with 'train find batch-size -- ARGUMENTS'",
    ),
    Alias::only("trainer.auto_select_gpus", "false", "name the devices, as in --gpu-ids 0,1"),
    Alias::only("trainer.benchmark", "true false", "the backend chooses kernels; remove it"),
    Alias::word("trainer.tpu_cores", Nothing("'train doctor' lists the devices")),
];
