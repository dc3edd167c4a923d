//! What a configuration must satisfy as a whole.
//!
//! Types and spellings are checked where they are read; here are the ranges of single numbers, then the combinations
//! that cannot run. Each rule says where the offending value came from and which flag mends it. Rules whose keys were
//! refused already are silent. Whether devices exist is left to the backend.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::range::RANGES;
use super::resolve::Merged;
use super::schema::{Schema, plain};
use super::{flag, suggestion};
use crate::data::Source;
use crate::optim::OptimizerKind;
use crate::parallel::StrategyKind;

/// Every rule that the configuration breaks, one line each.
pub fn check(merged: &Merged, refused: &[String], schema: &Schema) -> Vec<String> {
    let mut rules = Rules { merged, refused, lines: Vec::new() };
    rules.ranges(schema);
    rules.devices();
    rules.processes();
    rules.strategy();
    rules.optimizer();
    rules.schedule();
    rules.data();
    rules.lines
}

struct Rules<'a> {
    merged: &'a Merged,
    refused: &'a [String],
    lines: Vec<String>,
}

impl Rules<'_> {
    /// Complains unless `holds`; the first of `keys` is the one to blame.
    fn require(&mut self, holds: bool, keys: &[&str], broken: impl FnOnce() -> String, remedy: &str) {
        let judged = keys.iter().all(|key| !self.refused.iter().any(|refused| refused == key));
        if judged && !holds {
            self.lines.push(format!("{} ({}); {remedy}", broken(), self.merged.place(keys[0])));
        }
    }

    fn ranges(&mut self, schema: &Schema) {
        let values = Table::try_from(&self.merged.config).expect("the configuration is plain TOML values");
        for (key, range) in RANGES {
            let value = key.split_once('.').and_then(|(section, name)| values.get(section)?.get(name));
            let value = value.expect("every range belongs to a key, which a test checks");
            let number = value.as_float().or(value.as_integer().map(|whole| whole as f64));
            let broken = || format!("{} must be {range}, got '{}'", flag::noun(key), plain(value));
            let holds = number.is_some_and(|number| range.contains(number));
            self.require(holds, &[key], broken, &suggestion::example(key, schema));
        }
    }

    fn devices(&mut self) {
        const KEY: &str = "parallel.gpu_ids";
        let parallel = &self.merged.config.parallel;
        let (devices, world) = (parallel.gpu_ids.len(), parallel.world_size);
        self.require(
            devices > 0,
            &[KEY],
            || "gpu ids must name a device, got '[]'".into(),
            "the default is --gpu-ids 0",
        );

        let mut seen = BTreeSet::new();
        let twice = parallel.gpu_ids.iter().find(|id| !seen.insert(**id));
        let broken = || format!("gpu ids must be different, got '{}' twice", twice.copied().unwrap_or_default());
        let remedy = "name each device once; more replicas than devices share them, as in --world-size 2 --gpu-ids 0";
        self.require(twice.is_none(), &[KEY], broken, remedy);

        let broken =
            || format!("every device must have a replica, got '{devices}' devices for a world size of '{world}'");
        let remedy = format!("use --world-size {devices} or fewer --gpu-ids");
        let enough = devices <= world.max(1) || twice.is_some();
        self.require(enough, &[KEY, "parallel.world_size"], broken, &remedy);
    }

    fn processes(&mut self) {
        let parallel = &self.merged.config.parallel;
        const REMEDY: &str = "leave it out and choose replicas and devices with --world-size and --gpu-ids";
        let broken = || format!("rank must be 0, as all replicas run in one process, got '{}'", parallel.rank);
        self.require(parallel.rank == 0, &["parallel.rank"], broken, REMEDY);
        let broken =
            || format!("dist url must be empty, as all replicas run in one process, got '{}'", parallel.dist_url);
        self.require(parallel.dist_url.is_empty(), &["parallel.dist_url"], broken, REMEDY);
    }

    fn strategy(&mut self) {
        let parallel = &self.merged.config.parallel;
        let holds = parallel.strategy != StrategyKind::Single || parallel.world_size <= 1;
        let broken = || format!("strategy single must have one replica, got a world size of '{}'", parallel.world_size);
        let keys = ["parallel.strategy", "parallel.world_size"];
        self.require(holds, &keys, broken, "use --strategy ddp or --world-size 1");
    }

    fn optimizer(&mut self) {
        let optim = &self.merged.config.optim;
        let is_sgd = optim.optimizer == OptimizerKind::Sgd;
        let broken = || "nesterov must go with the optimizer sgd".into();
        let remedy = "use --optimizer sgd or leave --nesterov out";
        self.require(!optim.nesterov || is_sgd, &["optim.nesterov", "optim.optimizer"], broken, remedy);

        let broken = || format!("nesterov must have a momentum above 0, got '{}'", optim.momentum);
        let holds = !optim.nesterov || !is_sgd || optim.momentum != 0.0;
        let remedy = "use --momentum 0.9 or leave --nesterov out";
        self.require(holds, &["optim.nesterov", "optim.momentum"], broken, remedy);
    }

    fn schedule(&mut self) {
        let (warmup, epochs) = (self.merged.config.schedule.warmup_epochs, self.merged.config.run.epochs);
        let broken = || format!("warmup epochs must be at most the epochs '{epochs}', got '{warmup}'");
        let holds = !warmup.is_finite() || epochs == 0 || warmup <= epochs as f64;
        let remedy = format!("use --warmup-epochs {} or more --epochs", epochs as f64 / 10.0);
        self.require(holds, &["schedule.warmup_epochs", "run.epochs"], broken, &remedy);
    }

    fn data(&mut self) {
        let (data, classes) = (&self.merged.config.data, self.merged.config.model.num_classes);
        let holds = !data.download || matches!(data.source, Source::Cifar10 | Source::Cifar100);
        let source = Value::try_from(data.source).map(|source| plain(&source)).unwrap_or_default();
        let broken = || format!("download must go with cifar10 or cifar100, got the data '{source}'");
        let remedy = "use --data cifar10 or leave --download out";
        self.require(holds, &["data.download", "data.source"], broken, remedy);

        let broken = || "num classes must be 0 (as many as the data has) or at least 2, got '1'".into();
        self.require(classes != 1, &["model.num_classes"], broken, "the default is model.num_classes=0");
    }
}
