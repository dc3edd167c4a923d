//! Resolves a request to a checked configuration.
//!
//! Merges the layers and checks the result. All errors are reported together, so that a user corrects a command line
//! once.

use std::collections::BTreeSet;

use kiln_engine::optim::{CountedFrom, ScheduleKind};
use kiln_engine::parallel::DistBackend;
use kiln_membership::environment::{Identity, identify};
use kiln_system::{Error, Result, shown};

use super::alias::origins::{self, About};
use super::layer::{Complaints, Layer};
use super::layers::Layers;
use super::merged::Merged;
use super::request::{Request, Setting};
use super::schema::plain;
use super::{Config, flag, idle, launcher, origin, own_words, rules};

#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    pub config: Config,
    /// Decisions made for the user, one line each.
    pub notes: Vec<String>,
    /// The keys that were given for this session, by whichever name.
    pub given: BTreeSet<String>,
}

/// Default start of a warm-up to the rate of one replica, as a fraction of the peak; torchvision's recipe.
const WARMUP_START: f64 = 0.01;

/// Keys without effect in a single process.
const BETWEEN_PROCESSES: [&str; 3] = ["parallel.dist_interface", "parallel.job_secret_file", "parallel.insecure"];

/// Builds the configuration from all layers.
///
/// # Errors
/// [`Error::Usage`] with every complaint: files that cannot be read, unknown keys, wrong types, numbers out of range,
/// impossible combinations.
pub fn resolve(request: &Request) -> Result<Resolved> {
    let (merged, layers, Complaints { mut lines, refused, .. }, mut notes) = assembled(request)?;
    lines.extend(rules::check(&merged, &refused));
    notes.extend(idle::notes(&merged.config, &layers));
    match &request.origin {
        None => {
            lines.extend(origin::ambiguous_batch(&merged));
            notes.extend(origin::hint(request, &layers, &merged.config));
        }
        Some(_) if lines.is_empty() => {
            notes.push(format!("in Kiln's own words: train {}", own_words::line(&merged.config, request)));
        }
        Some(_) => {}
    }
    lines.extend(layers.untyped_addresses());
    let parallel = &merged.config.parallel;
    let several = parallel.processes() > 1 || (parallel.elastic.is_on() && !parallel.dist_url.is_empty());
    if !several && layers.chosen("parallel.dist_url").is_some() {
        notes.push(format!(
            "--dist-url '{}' is not used, since one process hosts all replicas; for several, use a --world-size above \
             the number of --gpu-ids",
            parallel.dist_url
        ));
    }
    let idle = BETWEEN_PROCESSES.iter().filter(|key| !several && layers.chosen(key).is_some());
    notes.extend(idle.map(|key| format!("{key} has no effect in one process")));
    match parallel.dist_backend {
        DistBackend::Gloo if !several => {
            notes.push("gloo is not used in one process: its devices exchange through memory".into())
        }
        DistBackend::Nccl if !several && parallel.gpu_ids.len() == 1 => {
            notes.push("nccl is not used on one device: its replicas exchange through memory".into());
        }
        _ => {}
    }
    let (warmup, epochs) = (merged.config.schedule.warmup_epochs, merged.config.run.epochs);
    if merged.config.schedule.kind != ScheduleKind::OneCycle && warmup > epochs as f64 {
        notes.push(format!(
            "the warm-up of {warmup} epochs is longer than the run, which ends below the peak rate; --warmup-epochs {} \
             warms up for a tenth of it",
            epochs as f64 / 10.0
        ));
    }
    let (stages, micro_batches) = (merged.config.parallel.stages, merged.config.run.accumulation_steps);
    if micro_batches < stages {
        notes.push(format!(
            "with --accumulation-steps {micro_batches} the {stages} stages take turns; with {} or more they work at \
             the same time",
            2 * stages
        ));
    }
    if !lines.is_empty() {
        return Err(Error::Usage(lines.iter().map(|line| line.replace(char::is_control, " ")).collect()));
    }
    Ok(Resolved { config: merged.config, notes, given: layers.typed_keys() })
}

/// The configuration from the valid settings, with the defaults that depend on others, unchecked; the layers it is
/// from, their errors, and notes.
///
/// # Errors
/// As for [`resolve`], of a layer that cannot be merged.
pub(super) fn assembled(request: &Request) -> Result<(Merged, Layers, Complaints, Vec<String>)> {
    let (mut layers, mut complaints) = Layers::of(request);
    let mut notes = Vec::new();
    if let Some(saved) = &request.saved {
        notes.push(format!("settings are from '{}' unless given here", shown(&saved.path)));
        notes.extend(saved.note.clone());
    }
    shrink_to_dev_run(&mut layers, &mut notes);
    let identity = add_launcher_layer(&mut layers, &request.environment, &mut complaints.lines, &mut notes);
    let mut merged = Merged::of(layers.all())?;
    insist_on_precision(&layers, &mut merged.config);
    notes.extend(implied(&layers, &merged));
    if let Some(origin) = request.origin.as_deref().and_then(origins::find) {
        let lines = origin::settle(origin, &layers, identity.as_ref(), &mut merged.config);
        notes.push(format!("--as {}: read as a command line of {}, with its defaults", origin.name, origin.script));
        notes.extend(lines.into_iter().map(|line| format!("--as {}: {line}", origin.name)));
        let averages = idle::averages_statistics(&merged.config.parallel);
        let is_tagged = |flag: &Setting| flag.key == "--model" && flag.value.contains('.');
        let is_about_this = |about: &About| match *about {
            About::All => true,
            About::Tag => request.flags.iter().any(is_tagged),
            About::Averages => averages,
            About::Word(word) => request.flags.iter().any(|it| it.key == word || it.place == word),
        };
        let differs = origin.differs.iter().filter(|(about, _)| is_about_this(about));
        notes.extend(differs.map(|(_, line)| format!("--as {}: {line}", origin.name)));
    }
    // The saved configuration of a resumed run already holds its warm-up.
    if request.saved.is_none() {
        shorten_default_warmup(&layers, &mut merged.config, &mut notes);
        start_below_peak(&layers, &mut merged.config);
    }
    Ok((merged, layers, complaints, notes))
}

/// The errors of single settings, without the rules about combinations, one line each.
pub fn faults(request: &Request) -> Vec<String> {
    Layers::of(request).1.lines
}

/// # Errors
/// [`Error::Usage`] with the [`faults`] of `request`.
pub fn check(request: &Request) -> Result<()> {
    let lines = faults(request);
    if lines.is_empty() { Ok(()) } else { Err(Error::Usage(lines)) }
}

/// The configuration from the valid settings, unchecked; used before a request is resolved.
pub fn sketch(request: &Request) -> Option<Config> {
    let (mut layers, _) = Layers::of(request);
    add_launcher_layer(&mut layers, &request.environment, &mut Vec::new(), &mut Vec::new());
    Merged::of(layers.all()).ok().map(|merged| merged.config)
}

/// Defaults changed by the source of the images and by the pretrained weights, a line each.
fn implied(layers: &Layers, merged: &Merged) -> impl Iterator<Item = String> {
    let [photographs, weights] = &layers.implied;
    let changed = |layer: &Layer, below: &[&Layer]| {
        let differs = |layer: &&Layer, key: &str, value: &toml::Value| layer.find(key).is_some_and(|it| it.0 != value);
        let is_new = |key: &str, value: &toml::Value| below.iter().any(|layer| differs(layer, key, value));
        let counts =
            |(key, value, place): &(&str, &toml::Value, &str)| merged.place(key) == *place && is_new(key, value);
        let settings: Vec<_> =
            layer.entries().filter(counts).map(|(key, value, _)| flag::setting(key, &plain(value))).collect();
        (!settings.is_empty()).then(|| settings.join(" "))
    };
    let source = layers.chosen("data.source").map(|(source, _)| plain(source)).unwrap_or_default();
    let shown = changed(photographs, &[&layers.defaults])
        .map(|settings| format!("images are treated as photographs (--data {source}): {settings}, unless set"));
    let made = changed(weights, &[photographs, &layers.defaults]);
    let made = made.map(|settings| {
        let from = &merged.config.model.pretrained;
        format!("settings of the weights '{from}': {settings}, unless set")
    });
    [shown, made].into_iter().flatten()
}

/// Adds the settings of `--fast-dev-run`, which override files and groups; the environment and arguments override them.
fn shrink_to_dev_run(layers: &mut Layers, notes: &mut Vec<String>) {
    if !layers.is_dev_run() {
        return;
    }
    for (key, value) in [
        ("run.epochs", 1),
        ("run.max_steps", 3),
        ("run.limit_train_batches", 3),
        ("run.limit_val_batches", 2),
        ("schedule.warmup_epochs", 0),
    ] {
        layers.dev_run.set(key, value, "--fast-dev-run");
    }
    notes.push("fast dev run: 1 epoch of 3 training and 2 validation batches, no warm-up, unless set".into());
}

/// Adds the settings from a launcher's variables.
fn add_launcher_layer(
    layers: &mut Layers,
    environment: &[(String, String)],
    lines: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Option<Identity> {
    match identify(environment) {
        Ok(Some(identity)) => {
            layers.launcher = launcher::layer(&identity, &|key| layers.chosen(key), lines);
            let (rank, processes) = (identity.rank.value, identity.processes.value);
            notes.push(format!("{}: process {rank} of {processes}", identity.launcher));
            return Some(identity);
        }
        Ok(None) => {}
        Err(Error::Usage(complaints)) => lines.extend(complaints),
        Err(other) => lines.push(other.to_string()),
    }
    None
}

/// A half type given in Kiln's own spelling is used even if another trainer's flag allows it only where it is fast.
fn insist_on_precision(layers: &Layers, config: &mut Config) {
    let place = |key: &str| layers.chosen(key).map_or("", |(_, place)| place);
    let [precision, condition] = ["run.precision", "run.half_if_fast"].map(place);
    config.run.half_if_fast &= precision == condition || condition.contains("half_if_fast");
}

/// Lets the warm-up start below the peak if the peak is the rate of one replica.
fn start_below_peak(layers: &Layers, config: &mut Config) {
    let growth = config.schedule.growth(config.parallel.world_size, config.run.accumulation_steps);
    let is_chosen = layers.chosen("schedule.warmup_start").is_some();
    if config.schedule.warmup_epochs > 0.0 && config.schedule.warmup_lr == 0.0 && growth <= 1.0 && !is_chosen {
        config.schedule.warmup_start = WARMUP_START;
    }
}

/// Limits the default warm-up to a tenth of the run; there is none if the shape is counted as other trainers do.
fn shorten_default_warmup(layers: &Layers, config: &mut Config, notes: &mut Vec<String>) {
    let tenth = config.run.epochs as f64 / 10.0;
    let rises_by_itself = config.schedule.kind == ScheduleKind::OneCycle;
    let chosen = rises_by_itself || layers.chosen("schedule.warmup_epochs").is_some();
    let most = if config.schedule.counted_from == CountedFrom::Auto { tenth } else { 0.0 };
    if !chosen && config.schedule.warmup_epochs > most {
        config.schedule.warmup_epochs = most;
        notes.push(if most == 0.0 {
            format!("no warm-up: --warmup-epochs {tenth} warms up for a tenth of the run")
        } else {
            format!("warm-up of {tenth} epochs, a tenth of the run; --warmup-epochs changes that")
        });
    }
}
