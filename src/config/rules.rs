//! Rules for a merged configuration: ranges of single numbers, and combinations that cannot run.
//!
//! Types and spellings are checked earlier, when a layer is read. Each rule names the place of the offending value and
//! the flag that corrects it. Rules about already refused keys are skipped. The backend checks that devices exist.

mod devices;
mod views;

use std::fmt::Display;
use std::net::SocketAddr;

use kiln_data::{AutoAugment, Corrupt, Decode, Exif, Order, Source};
use kiln_engine::optim::{LossKind, OptimizerKind, ScheduleKind};
use kiln_engine::parallel::{BnStatistics, CudaGraph, DistBackend, StrategyKind};
use kiln_membership::Elastic;
use kiln_objects::is_url;
use kiln_system::shown;
use kiln_training::{Architecture, Bottleneck};
use toml::{Table, Value};

use super::merged::Merged;
use super::schema::{enumerate, plain};
use super::{flag, range, suggestion};
use crate::serve::USUAL;
use crate::weights::Format;

/// Every rule that the configuration breaks, one line each.
pub(crate) fn check(merged: &Merged, refused: &[String]) -> Vec<String> {
    let mut rules = Rules { merged, refused, lines: Vec::new() };
    rules.ranges();
    rules.devices();
    rules.served();
    rules.processes();
    rules.strategy();
    rules.optimizer();
    rules.schedule();
    rules.data();
    rules.views();
    rules.model();
    rules.copy();
    rules.lines
}

struct Rules<'a> {
    merged: &'a Merged,
    refused: &'a [String],
    lines: Vec<String>,
}

impl Rules<'_> {
    /// Adds the complaint `broken` unless `holds`, with the place of the first of `keys`.
    fn require(&mut self, holds: bool, keys: &[&str], broken: impl Display, remedy: &str) {
        let judged = keys.iter().all(|key| !self.refused.iter().any(|refused| refused == key));
        if judged && !holds {
            self.lines.push(format!("{broken} ({}); {remedy}", self.merged.place(keys[0])));
        }
    }

    fn ranges(&mut self) {
        let values = Table::try_from(&self.merged.config).expect("the configuration is plain TOML values");
        for (key, range) in range::all() {
            let value = key.split_once('.').and_then(|(section, name)| values.get(section)?.get(name));
            let value = value.expect("every range belongs to a key, which a test checks");
            let number = value.as_float().or(value.as_integer().map(|whole| whole as f64));
            let broken = format!("{} must be {range}, got '{}'", flag::noun(key), plain(value));
            let holds = number.is_some_and(|number| range.contains(number));
            self.require(holds, &[key], broken, &suggestion::example(key));
        }
    }

    fn served(&mut self) {
        let serve = &self.merged.config.run.serve;
        let broken = format!("serve must be an address and a port, got '{serve}'");
        let holds = serve.is_empty() || serve.parse::<SocketAddr>().is_ok();
        self.require(holds, &["run.serve"], broken, &format!("as in --serve={USUAL}"));
    }

    fn processes(&mut self) {
        let parallel = &self.merged.config.parallel;
        let (processes, workers) = (parallel.processes(), parallel.workers());
        let url = &parallel.dist_url;
        const URL: &str = "use --dist-url tcp://HOST:PORT with an address and a free port of rank 0";
        let broken = format!("dist url must be tcp://HOST:PORT, got '{url}'");
        self.require(url.is_empty() || parallel.rendezvous().is_some(), &["parallel.dist_url"], broken, URL);
        self.addresses();

        let broken = format!("rank must be below the number of processes '{processes}', got '{}'", parallel.rank);
        let keys = ["parallel.rank", "parallel.nnodes", "parallel.world_size", "parallel.gpu_ids"];
        self.require(parallel.rank < processes, &keys, broken, "use a larger --world-size, or give --nnodes");

        let of = parallel.capacity();
        let broken = format!("every process must have a replica, got '{processes}' for {of}");
        let remedy = format!("use --world-size {} or fewer processes", processes.div_ceil(parallel.stages.max(1)));
        let enough = processes <= workers || parallel.plans_stages();
        self.require(enough, &["parallel.nnodes", "parallel.world_size"], broken, &remedy);

        let broken = format!("'{processes}' processes need a rendezvous address");
        self.require(processes == 1 || !url.is_empty(), &["parallel.dist_url"], broken, URL);

        let broken = "units can be logged in one process only";
        let alone = processes == 1 && !parallel.elastic.is_on();
        let remedy = "remove run.log_units, or train in one process";
        self.require(alone || !self.merged.config.run.log_units, &["run.log_units"], broken, remedy);

        self.engine(processes);
        self.replicas_per_device();
        self.stages();
        self.elastic();
        self.roll_back();
    }

    fn addresses(&mut self) {
        let parallel = &self.merged.config.parallel;
        let all = parallel.rendezvous().unwrap_or_default();
        let (count, keys) = (all.len(), ["parallel.dist_url"]);
        let broken = format!("dist url must name one, three or five addresses, got '{count}'");
        let remedy = "use an odd number: more than half must survive, so an even number tolerates no more losses than \
                      the odd one below it";
        self.require(matches!(count, 0 | 1 | 3 | 5), &keys, broken, remedy);

        let twice = all.iter().enumerate().find(|(index, address)| all[..*index].contains(address));
        let broken = twice.map(|(_, (host, port))| format!("dist url names '{host}:{port}' twice")).unwrap_or_default();
        self.require(twice.is_none(), &keys, broken, "use a different address for each holder of the rendezvous");

        let broken = format!("only an elastic run can have several addresses, got '{count}'");
        let remedy =
            "use --elastic, or give only the address of rank 0: without --elastic the loss of any process ends the run";
        self.require(count < 2 || parallel.elastic.is_on(), &["parallel.dist_url", "parallel.elastic"], broken, remedy);
    }

    fn stages(&mut self) {
        let parallel = &self.merged.config.parallel;
        let points = parallel.split_points.len();
        let stages = if parallel.plans_stages() { "auto".into() } else { parallel.stages.to_string() };
        let broken = format!("split points must be one fewer than stages, got '{points}' for '{stages}' stages");
        let remedy = format!("use --stages {}, or remove --split-points", points + 1);
        self.require(
            points == 0 || points + 1 == parallel.stages,
            &["parallel.split_points", "parallel.stages"],
            broken,
            &remedy,
        );
        let holds = parallel.link == 0.0 || parallel.plans_stages();
        let broken = format!("link is only for the planner, got '{}' for '{stages}' stages", parallel.link);
        self.require(holds, &["parallel.link", "parallel.stages"], broken, "use --stages auto, or remove --link");

        let holds = !parallel.cudnn || !parallel.elastic.is_on();
        let broken = "cuDNN takes one device, and an elastic run may get more";
        self.require(holds, &["parallel.cudnn", "parallel.elastic"], broken, "leave out --cudnn, or --elastic");

        let holds = !parallel.plans_stages() || !parallel.elastic.is_on();
        let broken = "stages auto cannot be elastic: the planner times the devices at the start, and an elastic run \
                      changes them";
        let keys = ["parallel.stages", "parallel.elastic"];
        self.require(holds, &keys, broken, "use a number of --stages, or remove --elastic");

        let is_cut = parallel.stages > 1 && parallel.elastic.is_on();
        let holds = !is_cut || !self.merged.config.run.output_dir.as_os_str().is_empty();
        let broken = "an elastic run with stages needs an output dir, from which lost stages are restored";
        let keys = ["parallel.stages", "parallel.elastic", "run.output_dir"];
        self.require(holds, &keys, broken, "use --output-dir, or remove --elastic or --stages");
    }

    fn elastic(&mut self) {
        let parallel = &self.merged.config.parallel;
        let Elastic::Between { min, max } = parallel.elastic else { return };
        let world = parallel.world_size;
        let workers = parallel.workers();
        let most = max.unwrap_or(workers).max(min);
        let broken = format!("every process must have a replica, got up to '{most}' for {}", parallel.capacity());
        let size = most.div_ceil(parallel.stages.max(1));
        let remedy = format!("use --world-size {size} or fewer processes with --elastic");
        self.require(most <= workers, &["parallel.elastic", "parallel.world_size"], broken, &remedy);

        let broken = format!("'{min}' processes need a rendezvous address");
        let holds = min == 1 || !parallel.dist_url.is_empty();
        self.require(holds, &["parallel.elastic"], broken, "use --dist-url tcp://HOST:PORT");

        let broken = "an elastic run assigns ranks itself";
        let holds = parallel.rank == 0 && parallel.nnodes == 0;
        let keys = ["parallel.rank", "parallel.nnodes", "parallel.elastic"];
        self.require(
            holds,
            &keys,
            broken,
            "remove --rank and --nnodes; --elastic MIN:MAX limits the number of processes",
        );

        let broken = "elastic needs synchronised batch-norm or the mean of its statistics, since those of a lost \
                      process would be lost";
        let holds = parallel.sync_bn || world == 1 || parallel.bn_statistics == BnStatistics::Mean;
        let remedy = "use --sync-bn or parallel.bn_statistics=mean, or remove --elastic";
        self.require(holds, &["parallel.sync_bn", "parallel.elastic"], broken, remedy);

        let broken = "shard optimizer cannot be elastic: a lost process would lose its part of the optimizer state";
        let keys = ["parallel.shard_optimizer", "parallel.elastic"];
        self.require(!parallel.shard_optimizer, &keys, broken, "remove --shard-optimizer or --elastic");

        let requeues = self.merged.config.run.requeue;
        let broken = "requeue cannot be combined with elastic";
        self.require(!requeues, &["run.requeue", "parallel.elastic"], broken, "remove --requeue or --elastic");

        let (lost, beat) = (parallel.lost_after, parallel.heartbeat);
        let broken = format!("lost after must be at least three heartbeats of '{beat}' s, got '{lost}'");
        let remedy = format!("use --lost-after {} or a shorter --heartbeat", 3.0 * beat);
        self.require(lost >= 3.0 * beat, &["parallel.lost_after", "parallel.heartbeat"], broken, &remedy);
    }

    fn roll_back(&mut self) {
        let config = &self.merged.config;
        let broken = "roll back needs an elastic run with an output dir that compares its replicas";
        let (is_elastic, is_named) = (config.parallel.elastic.is_on(), !config.run.output_dir.as_os_str().is_empty());
        let holds = !config.parallel.roll_back || (is_elastic && is_named && config.parallel.check_every > 0);
        let keys = ["parallel.roll_back", "parallel.elastic", "parallel.check_every", "run.output_dir"];
        self.require(holds, &keys, broken, "use --elastic, --output-dir and --check-every, or remove --roll-back");
    }

    fn engine(&mut self, processes: usize) {
        let parallel = &self.merged.config.parallel;
        let meets = parallel.elastic.is_on() && !parallel.dist_url.is_empty();
        let name = Value::try_from(parallel.dist_backend).map(|name| plain(&name)).unwrap_or_default();
        let (holds, rule, remedy) = match parallel.dist_backend {
            DistBackend::Auto => (true, "", ""),
            DistBackend::Local => (processes == 1 && !meets, "works in one process only", "remove --dist-backend"),
            DistBackend::Gloo => (cfg!(feature = "gloo"), "is not in this build", "build with --features gloo"),
            DistBackend::Nccl if parallel.elastic.is_on() && !meets => {
                (false, "needs several processes in an elastic run", "give --dist-url, or remove --dist-backend")
            }
            DistBackend::Nccl => {
                let holds = processes == 1 && !meets || cfg!(feature = "gloo");
                (holds, "is not in this build", "build with --features tch,gloo")
            }
        };
        let broken = format!("dist backend '{name}' {rule}");
        self.require(holds, &["parallel.dist_backend", "parallel.nnodes"], broken, remedy);
    }

    fn strategy(&mut self) {
        let parallel = &self.merged.config.parallel;
        let holds = parallel.strategy != StrategyKind::Single || parallel.world_size <= 1;
        let broken = format!("strategy 'single' takes one replica, got a world size of '{}'", parallel.world_size);
        let keys = ["parallel.strategy", "parallel.world_size"];
        self.require(holds, &keys, broken, "use --strategy ddp or --world-size 1");
    }

    fn optimizer(&mut self) {
        let optim = &self.merged.config.optim;
        let is_sgd = optim.optimizer == OptimizerKind::Sgd;
        let broken = "nesterov works with optimizer 'sgd' only";
        let remedy = "use --optimizer sgd or remove --nesterov";
        self.require(!optim.nesterov || is_sgd, &["optim.nesterov", "optim.optimizer"], broken, remedy);

        let broken = "bce threshold works with loss 'bce' only";
        let holds = optim.bce_threshold == 0.0 || optim.loss == LossKind::Bce;
        self.require(holds, &["optim.bce_threshold", "optim.loss"], broken, "use optim.loss=bce");

        let broken = "clip grad value cannot be combined with clip grad norm";
        let holds = optim.clip_grad_value == 0.0 || optim.clip_grad_norm == 0.0;
        let keys = ["optim.clip_grad_value", "optim.clip_grad_norm"];
        self.require(holds, &keys, broken, "remove --clip-grad-value or --clip-grad-norm");

        let broken = format!("nesterov needs a momentum above 0, got '{}'", optim.momentum);
        let holds = !optim.nesterov || !is_sgd || optim.momentum != 0.0;
        let remedy = "use --momentum 0.9 or remove --nesterov";
        self.require(holds, &["optim.nesterov", "optim.momentum"], broken, remedy);
    }

    fn schedule(&mut self) {
        let last = self.merged.config.schedule.final_lr;
        let exponential = self.merged.config.schedule.kind == ScheduleKind::Exponential;
        let broken = "final lr must be above 0 for the exponential schedule, got '0'";
        let keys = ["schedule.final_lr", "schedule.kind"];
        self.require(!exponential || last > 0.0, &keys, broken, "use schedule.final_lr=1e-5");

        let (kind, gamma) = (self.merged.config.schedule.kind, self.merged.config.schedule.gamma);
        let name = if kind == ScheduleKind::Step { "step" } else { "plateau" };
        let broken = format!("gamma must be at most 1 for the {name} schedule, got '{gamma}'");
        let falls = matches!(kind, ScheduleKind::Step | ScheduleKind::Plateau);
        let keys = ["schedule.gamma", "schedule.kind"];
        self.require(!falls || gamma <= 1.0, &keys, broken, "use schedule.gamma=0.1");

        let broken = "warmup epochs cannot be combined with schedule 'onecycle', which has its own rise";
        let remedy = "use --warmup-epochs 0 and schedule.onecycle_rise";
        let one_cycle = kind == ScheduleKind::OneCycle;
        let unset =
            self.merged.config.schedule.warmup_epochs == 0.0 || self.merged.is_default("schedule.warmup_epochs");
        let holds = !one_cycle || unset;
        self.require(holds, &["schedule.warmup_epochs", "schedule.kind"], broken, remedy);
    }

    fn data(&mut self) {
        let (data, classes) = (&self.merged.config.data, self.merged.config.model.num_classes);
        let source = Value::try_from(data.source).map(|source| plain(&source)).unwrap_or_default();
        let (cifar, files) = (&["cifar10", "cifar100"][..], &["folder", "webdataset", "parquet", "pack"][..]);
        let (parts, shards, parquet) = (&files[..3], &files[1..3], &files[2..3]);
        let skip = "use data.corrupt=refuse; train pack has --skip-corrupt";
        for (key, is_set, what, sources, remedy) in [
            ("data.download", data.download, "download", cifar, "use --data cifar10 or remove --download"),
            ("data.order", data.order != Order::Global, "order=window", shards, "use data.order=global"),
            ("data.exif", data.exif != Exif::Ignore, "exif", files, "use data.exif=ignore"),
            ("data.decode", data.decode != Decode::Whole, "decode", files, "use data.decode=whole"),
            ("data.corrupt", data.corrupt != Corrupt::Refuse, "corrupt=skip", parts, skip),
            ("data.image_column", !data.image_column.is_empty(), "image column", parquet, "remove data.image_column"),
            ("data.label_column", !data.label_column.is_empty(), "label column", parquet, "remove data.label_column"),
        ] {
            let broken = format!("{what} works with data {} only, got '{source}'", enumerate(sources, "or"));
            self.require(!is_set || sources.contains(&source.as_str()), &[key, "data.source"], broken, remedy);
        }

        let is_mixed = data.mixup > 0.0 || data.cutmix > 0.0;
        let broken = "steps with mixed images cannot be recorded, since the share of a label is a number of the host";
        let keys = ["parallel.cuda_graph", "data.mixup", "data.cutmix"];
        let holds = !is_mixed || self.merged.config.parallel.cuda_graph != CudaGraph::On;
        self.require(holds, &keys, broken, "use --cuda-graph off, or --mixup 0 --cutmix 0");

        let holds = data.source != Source::Parquet || cfg!(feature = "parquet");
        let broken = "data 'parquet' is not in this build";
        self.require(holds, &["data.source"], broken, "build with --features parquet");

        let is_url = is_url(&data.dir) && !data.dir.starts_with("file:");
        let holds = !is_url || data.source == Source::Webdataset;
        let broken = format!("an object store can hold data 'webdataset' only, got '{source}'");
        let remedy = "use --data webdataset, or a directory as --data-dir";
        self.require(holds, &["data.dir", "data.source"], broken, remedy);

        let broken = "object stores are not in this build";
        self.require(!is_url || cfg!(feature = "remote"), &["data.dir"], broken, "build with --features remote");

        let holds = is_url || data.cache_dir.as_os_str().is_empty();
        let broken = format!("cache dir is only for images in an object store, got '{}'", shown(&data.dir));
        let remedy = "remove data.cache_dir, or give a URL as --data-dir";
        self.require(holds, &["data.cache_dir", "data.dir"], broken, remedy);

        let holds = data.center_crop == 0.0 || data.center_crop >= 0.1;
        let broken = format!("center crop must be 0 (the whole image) or at least 0.1, got '{}'", data.center_crop);
        self.require(holds, &["data.center_crop"], broken, "0.875 is usual for photographs");

        let holds = data.rand_augment_ops == 0 || data.auto_augment == AutoAugment::None;
        let broken = format!("rand augment ops cannot be combined with auto augment '{}'", data.auto_augment);
        let remedy = "remove data.auto_augment, or use --rand-augment-ops 0";
        self.require(holds, &["data.auto_augment", "data.rand_augment_ops"], broken, remedy);

        let broken = "num classes must be 0 (one per class of the data) or at least 2, got '1'";
        self.require(classes != 1, &["model.num_classes"], broken, "the default is model.num_classes=0");
    }

    fn model(&mut self) {
        let model = &self.merged.config.model;
        let plain = Architecture::of_depth(model.depth, Bottleneck::PLAIN);
        let has_bottlenecks = plain.is_none_or(|plain| plain.bottleneck.is_some());
        let key = if model.groups == 1 { "model.width_per_group" } else { "model.groups" };
        let is_plain = model.groups == 1 && model.width_per_group == 64;
        let broken =
            format!("{} needs the bottlenecks of a deeper network, got depth '{}'", flag::noun(key), model.depth);
        let remedy = "use --depth 50, 101 or 152, or remove --groups and --width-per-group";
        self.require(is_plain || has_bottlenecks, &[key, "model.depth"], broken, remedy);

        let product = model.width.saturating_mul(model.width_per_group);
        let broken = format!("width x width per group must be a multiple of 64, got '{product}'");
        let holds = !has_bottlenecks || product.is_multiple_of(64);
        let remedy = "use another --width or --width-per-group";
        self.require(holds, &["model.width_per_group", "model.width"], broken, remedy);
    }

    /// The suffix of `checkpoint.path` selects the format.
    fn copy(&mut self) {
        let url = &self.merged.config.checkpoint.url;
        let broken = format!("checkpoint url must be a URL, got '{}'", shown(url));
        let remedy = "give --checkpoint-url file:///directory, https://host/path or s3://bucket/path";
        self.require(url.as_os_str().is_empty() || is_url(url), &["checkpoint.url"], broken, remedy);

        let path = &self.merged.config.checkpoint.path;
        let broken = format!("checkpoint must end in {}, got '{}'", Format::SUFFIXES, shown(path));
        let holds = path.as_os_str().is_empty() || Format::of(path).is_some();
        let remedy = "give another --checkpoint, as in best.pth";
        self.require(holds, &["checkpoint.path"], broken, remedy);
    }
}
