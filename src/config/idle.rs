//! Settings of the command line that the optimizer, the schedule or batch-norm does not read: each is a note, so that
//! no flag is ignored in silence.

use kiln_engine::parallel::BnStatistics;
use serde::Serialize;

use super::layers::Layers;
use super::{Config, ParallelConfig};

const ADAM: &[&str] = &["adam", "adamw", "nadamw", "lamb"];

/// Settings, and which optimizers read them.
const OF_OPTIMIZERS: &[(&str, &[&str])] = &[
    ("optim.momentum", &["sgd", "rmsprop", "lars"]),
    ("optim.beta1", ADAM),
    ("optim.beta2", ADAM),
    ("optim.alpha", &["rmsprop"]),
    ("optim.eps", &["adam", "adamw", "nadamw", "rmsprop", "lamb"]),
    ("optim.trust_coefficient", &["lars"]),
];

/// Settings, and which schedules read them.
const OF_SCHEDULES: &[(&str, &[&str])] = &[
    ("schedule.step_epochs", &["step"]),
    ("schedule.milestones", &["step"]),
    ("schedule.gamma", &["step", "plateau", "poly"]),
    ("schedule.patience_epochs", &["plateau"]),
    ("schedule.cooldown_epochs", &["plateau"]),
    ("schedule.restart_epochs", &["restarts"]),
    ("schedule.restart_factor", &["restarts"]),
    ("schedule.onecycle_rise", &["onecycle"]),
    ("schedule.final_lr", &["cosine", "restarts", "linear", "poly", "exponential", "plateau"]),
];

pub(super) fn notes(config: &Config, layers: &Layers) -> Vec<String> {
    let mut notes = Vec::new();
    for (what, chosen, settings) in [
        ("optimizer", word(config.optim.optimizer), OF_OPTIMIZERS),
        ("schedule", word(config.schedule.kind), OF_SCHEDULES),
    ] {
        let idle = settings.iter().filter(|(_, readers)| !readers.contains(&chosen.as_str()));
        let given = idle.filter_map(|(key, _)| layers.on_command_line(key));
        notes.extend(given.map(|place| format!("{place} has no effect with {what} '{chosen}'")));
    }
    let is_asked = config.parallel.bn_statistics == BnStatistics::Mean && !averages_statistics(&config.parallel);
    let given = layers.on_command_line("parallel.bn_statistics").filter(|_| is_asked);
    notes.extend(given.map(|place| format!("{place} has no effect with one replica or --sync-bn")));
    notes
}

/// Whether replicas have running statistics of their own to average.
pub(super) fn averages_statistics(parallel: &ParallelConfig) -> bool {
    parallel.bn_statistics == BnStatistics::Mean && parallel.world_size > 1 && !parallel.sync_bn
}

/// The word of a choice in the configuration.
fn word(choice: impl Serialize) -> String {
    toml::Value::try_from(choice).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default()
}
