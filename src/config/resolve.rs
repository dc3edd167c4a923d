//! From what the user wrote to what runs.
//!
//! Reads every layer, merges them so that later ones win, and checks the outcome. All complaints are collected before
//! anything is refused, so that a user mends a command line once. Reads the files it is told to and nothing else: the
//! environment is handed in.

use std::path::PathBuf;

use ::config::{Value as Placed, ValueKind};

use super::alias::{self, Typed};
use super::layer::{Complaints, Layer};
use super::schema::Schema;
use super::{Config, DEFAULT_TOML, group, launcher, rules, suggestion};
use crate::error::{Error, Result};
use crate::launch::environment::identify;
use crate::optim::ScheduleKind;
use crate::parallel::StrategyKind;

/// What messages call the defaults.
const DEFAULTS: &str = "config/default.toml";

/// What the user asked for, in their own words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The configuration of the run that goes on, or whose model is asked: it holds where nothing else says otherwise,
    /// but for what is about one session or about several processes.
    pub saved: Option<PathBuf>,
    /// The files of `--config`, the last one winning.
    pub files: Vec<PathBuf>,
    /// The directories of `--config-dir`, which add group files.
    pub config_dirs: Vec<PathBuf>,
    /// The environment: `TRAIN__SECTION__KEY`, and the variables of launchers.
    pub environment: Vec<(String, String)>,
    /// `KEY=VALUE` arguments.
    pub arguments: Vec<String>,
    /// Flags that stand for keys.
    pub flags: Vec<Setting>,
}

impl Request {
    /// Whether a flag or an argument sets `key`.
    pub fn names(&self, key: &str) -> bool {
        let is_key = |argument: &String| pair(argument).is_some_and(|(name, _)| name == key);
        self.flags.iter().any(|flag| flag.key == key) || self.arguments.iter().any(is_key)
    }
}

/// A flag with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as in `run.epochs`; or the flag itself where another trainer's is to be translated.
    pub key: String,
    /// The value as it was typed.
    pub value: String,
    /// The flag, as in `--epochs`.
    pub flag: String,
}

/// What runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// Every value, checked.
    pub config: Config,
    /// What was decided on the user's behalf, one line each.
    pub notes: Vec<String>,
}

/// Keys about what happens between processes.
const BETWEEN_PROCESSES: [&str; 6] = [
    "parallel.dist_interface",
    "parallel.job_secret_file",
    "parallel.insecure",
    "parallel.tls_cert",
    "parallel.tls_key",
    "parallel.tls_ca",
];

/// Keys about one session of a run, or about several processes: a saved configuration does not set them.
const OF_A_SESSION: [&str; 24] = [
    "run.max_steps",
    "run.max_time",
    "run.fast_dev_run",
    "run.output_dir",
    "run.dry_run",
    "run.progress",
    "run.requeue",
    "checkpoint.resume",
    "checkpoint.force_config",
    "parallel.rank",
    "parallel.nnodes",
    "parallel.elastic",
    "parallel.elastic_timeout",
    "parallel.heartbeat",
    "parallel.lost_after",
    "parallel.dist_url",
    "parallel.dist_backend",
    "parallel.dist_interface",
    "parallel.job_id",
    "parallel.job_secret_file",
    "parallel.insecure",
    "parallel.tls_cert",
    "parallel.tls_key",
    "parallel.tls_ca",
];

/// Builds the configuration from all layers.
///
/// # Errors
/// [`Error::Usage`] with every complaint: files that cannot be read, unknown keys, wrong types, numbers out of range,
/// impossible combinations.
pub fn resolve(request: &Request) -> Result<Resolved> {
    let schema = Schema::new();
    let mut complaints = Complaints::default();
    let mut layers = Reader { request, schema: &schema, complaints: &mut complaints }.layers();
    let mut notes = Vec::new();
    let saved = request.saved.iter().map(|path| format!("what is not said is as in '{}'", path.display()));
    notes.extend(saved);
    shrink_to_dev_run(&mut layers, &mut notes);
    listen_to_launcher(&mut layers, &request.environment, &mut complaints.lines, &mut notes);
    let mut merged = Merged::of(&layers)?;
    shorten_default_warmup(&layers, &mut merged.config, &mut notes);
    let Complaints { mut lines, refused } = complaints;
    lines.extend(rules::check(&merged, &refused, &schema));
    lines.extend(alias::whose_batch(&merged));
    let parallel = &merged.config.parallel;
    let several = parallel.processes() > 1 || (parallel.elastic.is_on() && !parallel.dist_url.is_empty());
    if (several || parallel.elastic.is_on()) && parallel.strategy == StrategyKind::Dp {
        notes.push("strategy dp is for one process whose devices stay; others use ddp".into());
    }
    let idle = BETWEEN_PROCESSES.iter().filter(|key| !several && layers.chosen(key).is_some());
    notes.extend(idle.map(|key| format!("{key} has no effect in one process")));
    if !lines.is_empty() {
        return Err(Error::Usage(lines.iter().map(|line| line.replace(char::is_control, " ")).collect()));
    }
    Ok(Resolved { config: merged.config, notes })
}

/// The configuration as far as it can be understood, unchecked; to see what a request is about before it is resolved.
pub fn sketch(request: &Request) -> Option<Config> {
    let schema = Schema::new();
    let mut complaints = Complaints::default();
    let mut layers = Reader { request, schema: &schema, complaints: &mut complaints }.layers();
    listen_to_launcher(&mut layers, &request.environment, &mut Vec::new(), &mut Vec::new());
    Merged::of(&layers).ok().map(|merged| merged.config)
}

/// The layers in the order of their strength.
struct Layers {
    defaults: Layer,
    /// Files, then groups.
    files: Vec<Layer>,
    /// What a development run imposes on the files.
    dev_run: Layer,
    environment: Layer,
    arguments: Layer,
    flags: Layer,
    /// What a launcher says, where nobody contradicts.
    launcher: Layer,
}

impl Layers {
    /// Everything but the defaults, the weakest first.
    fn by_the_user(&self) -> impl DoubleEndedIterator<Item = &Layer> {
        self.files.iter().chain([&self.dev_run, &self.environment, &self.arguments, &self.flags, &self.launcher])
    }

    /// The value of `key` that the user chose, and where.
    fn chosen(&self, key: &str) -> Option<(&toml::Value, &str)> {
        self.by_the_user().rev().find_map(|layer| layer.find(key))
    }

    fn is_dev_run(&self) -> bool {
        self.chosen("run.fast_dev_run").and_then(|(value, _)| value.as_bool()).unwrap_or(false)
    }
}

/// Turns the request into layers.
struct Reader<'a> {
    request: &'a Request,
    schema: &'a Schema,
    complaints: &'a mut Complaints,
}

impl Reader<'_> {
    fn layers(mut self) -> Layers {
        let defaults = self.toml(DEFAULT_TOML, DEFAULTS);
        let mut files: Vec<Layer> = self.saved(&defaults).into_iter().chain(self.files()).collect();
        let (chosen, arguments) = self.arguments();
        files.extend(self.groups(&chosen));
        let (environment, flags) = (self.environment(), self.flags());
        let (dev_run, launcher) = (Layer::default(), Layer::default());
        Layers { defaults, files, dev_run, environment, arguments, flags, launcher }
    }

    fn toml(&mut self, text: &str, file: &str) -> Layer {
        Layer::from_toml(text, file, self.schema, self.complaints)
    }

    /// What the saved configuration says beyond the defaults: they count as nobody's choice here, too.
    fn saved(&mut self, defaults: &Layer) -> Option<Layer> {
        let path = self.request.saved.as_ref()?;
        let text = std::fs::read_to_string(path).ok()?;
        let mut layer = self.toml(&text, &path.display().to_string());
        let is_default =
            |key: &str, value: &toml::Value| defaults.find(key).is_some_and(|(default, _)| default == value);
        layer.retain(|key, value| !OF_A_SESSION.contains(&key) && !is_default(key, value));
        Some(layer)
    }

    fn files(&mut self) -> Vec<Layer> {
        let mut layers = Vec::new();
        for path in &self.request.files {
            let name = path.display().to_string();
            match std::fs::read_to_string(path) {
                Ok(text) => layers.push(self.toml(&text, &name)),
                Err(error) => self.complaints.lines.push(group::unreadable(&name, &error)),
            }
        }
        layers
    }

    /// The groups chosen among the arguments, and the layer of the others.
    fn arguments(&mut self) -> (Vec<(String, String)>, Layer) {
        let groups = group::groups(&self.request.config_dirs);
        let (mut chosen, mut layer) = (Vec::new(), Layer::default());
        let is_word = |name: &str| alias::find(name).is_some() && groups.iter().all(|group| group != name);
        let words: Vec<_> = self.request.arguments.iter().filter_map(|argument| word(argument)).collect();
        let words: Vec<_> = words.into_iter().filter(|word| is_word(&word.name)).collect();
        alias::add(&words, &mut layer, self.schema, self.complaints);
        for argument in &self.request.arguments {
            let place = format!("argument '{argument}'");
            match pair(argument) {
                None => self.complaints.lines.push(not_a_setting(argument)),
                Some((key, _)) if is_word(key) => {}
                Some((key, text)) if alias::is_unset(key, text) => {}
                Some((key, text)) if key.contains('.') => {
                    layer.add_text(key, text, place, self.schema, self.complaints);
                }
                Some((name, text)) if groups.iter().any(|group| group == name) => {
                    chosen.retain(|(group, _)| group != name);
                    chosen.push((name.to_string(), text.to_string()));
                }
                Some((word, text)) => {
                    let hint = suggestion::for_bare_word(word, text, &groups, self.schema);
                    self.complaints.lines.push(format!("unknown key '{word}' ({place}); {hint}"));
                }
            }
        }
        (chosen, layer)
    }

    fn groups(&mut self, chosen: &[(String, String)]) -> Vec<Layer> {
        let mut layers = Vec::new();
        for (group, name) in chosen {
            match group::find(group, name, &self.request.config_dirs) {
                Ok(file) => layers.push(self.toml(&file.text, &file.path)),
                Err(line) => self.complaints.lines.push(line),
            }
        }
        layers
    }

    fn environment(&mut self) -> Layer {
        let mut layer = Layer::default();
        for (name, text) in &self.request.environment {
            if let Some(path) = name.strip_prefix("TRAIN__") {
                let key = path.to_lowercase().replace("__", ".");
                layer.add_text(&key, text, format!("environment {name}"), self.schema, self.complaints);
            }
        }
        layer
    }

    fn flags(&mut self) -> Layer {
        let mut layer = Layer::default();
        let foreign = |Setting { key, value, flag }: &Setting| {
            alias::find(key).map(|_| Typed { name: key.clone(), value: value.clone(), place: flag.clone() })
        };
        let line: Vec<_> = self.request.flags.iter().filter_map(foreign).collect();
        alias::add(&line, &mut layer, self.schema, self.complaints);
        let own = self.request.flags.iter().filter(|setting| alias::find(&setting.key).is_none());
        for Setting { key, value, flag } in own.filter(|setting| !alias::is_unset(&setting.key, &setting.value)) {
            layer.add_text(key, value, flag.clone(), self.schema, self.complaints);
        }
        layer
    }
}

/// The two sides of `KEY=VALUE`; Hydra's `+KEY=VALUE`, which adds a key, sets one that is there.
fn pair(argument: &str) -> Option<(&str, &str)> {
    argument.trim_start_matches('+').split_once('=')
}

/// `KEY=VALUE` as a word that others may say.
fn word(argument: &str) -> Option<Typed> {
    let (name, value) = pair(argument)?;
    Some(Typed { name: name.into(), value: value.into(), place: format!("argument '{argument}'") })
}

/// The complaint about an argument without `=`.
fn not_a_setting(argument: &str) -> String {
    if argument.contains('/') {
        return format!("unknown argument '{argument}'; a directory of images is --data folder --data-dir {argument}");
    }
    match suggestion::nearest(argument, ["evaluate", "config", "launch", "sweep"].map(String::from)) {
        Some(command) => {
            format!("unknown argument '{argument}'; did you mean 'train {command}'? a command comes before options")
        }
        None => format!("unknown argument '{argument}'; options begin with --, settings read like run.epochs=3"),
    }
}

/// A development run wins over files and groups, which are written for real runs; what is set for this one command
/// wins over it.
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
    notes.push("fast dev run: 1 epoch of 3 training and 2 validation batches, no warm-up, unless set otherwise".into());
}

/// Adds what a launcher says about this process.
fn listen_to_launcher(
    layers: &mut Layers,
    environment: &[(String, String)],
    lines: &mut Vec<String>,
    notes: &mut Vec<String>,
) {
    match identify(environment) {
        Ok(Some(identity)) => {
            layers.launcher = launcher::layer(&identity, &|key| layers.chosen(key), lines);
            let (rank, processes) = (identity.rank.value, identity.processes.value);
            notes.push(format!("{}: process {rank} of {processes}", identity.launcher));
        }
        Ok(None) => {}
        Err(Error::Usage(complaints)) => lines.extend(complaints),
        Err(other) => lines.push(other.to_string()),
    }
}

/// The default warm-up suits long runs; a short one would be over before it reached its peak.
fn shorten_default_warmup(layers: &Layers, config: &mut Config, notes: &mut Vec<String>) {
    let tenth = config.run.epochs as f64 / 10.0;
    let rises_by_itself = config.schedule.kind == ScheduleKind::OneCycle;
    let chosen = rises_by_itself || layers.chosen("schedule.warmup_epochs").is_some();
    if !chosen && config.schedule.warmup_epochs > tenth {
        config.schedule.warmup_epochs = tenth;
        notes.push(format!("warm-up: {tenth} epochs, a tenth of the run; --warmup-epochs sets another length"));
    }
}

/// All layers in one: the values, and where each came from.
pub struct Merged {
    /// The values.
    pub config: Config,
    values: Placed,
}

impl Merged {
    fn of(layers: &Layers) -> Result<Self> {
        let sources = std::iter::once(&layers.defaults).chain(layers.by_the_user()).cloned();
        let builder = sources.fold(::config::Config::builder(), |builder, layer| builder.add_source(layer));
        let built = builder.build().map_err(|error| Error::usage(error.to_string()))?;
        let values = built.cache.clone();
        let config = built.try_deserialize().map_err(|error| Error::usage(error.to_string()))?;
        Ok(Self { config, values })
    }

    /// Whether nobody set `key`.
    pub fn is_default(&self, key: &str) -> bool {
        self.place(key).contains(DEFAULTS)
    }

    /// Where the value of `key` was set.
    pub fn place(&self, key: &str) -> &str {
        key.split('.').try_fold(&self.values, field).and_then(Placed::origin).unwrap_or("by default")
    }
}

/// The field of a table by its name.
fn field<'a>(value: &'a Placed, name: &str) -> Option<&'a Placed> {
    match &value.kind {
        ValueKind::Table(fields) => fields.get(name),
        _ => None,
    }
}
