//! Reads the layers of a configuration from a request, and collects their errors.
//!
//! Reads only the files that the request names; the environment is part of the request.

use std::collections::BTreeSet;
use std::path::Path;

use kiln_data::Source;
use kiln_membership::environment::identify;
use kiln_objects::is_url;
use kiln_system::shown;

use super::alias::origins::Origin;
use super::alias::{self, Named};
use super::interpolation;
use super::layer::{Complaints, Layer};
use super::merged::DEFAULTS;
use super::origin;
use super::request::{Request, Setting, pair};
use super::schema;
use super::{DEFAULT_TOML, PHOTOGRAPHS, flag, group, mistaken, suggestion};

/// Keys about one session or about processes: they are not taken from a saved configuration.
pub const SESSION_KEYS: [&str; 25] = [
    "run.max_steps",
    "run.stop_after",
    "run.max_time",
    "run.fast_dev_run",
    "run.output_dir",
    "run.dry_run",
    "run.progress",
    "run.requeue",
    "run.serve",
    "checkpoint.resume",
    "checkpoint.force_config",
    "parallel.rank",
    "parallel.nnodes",
    "parallel.shard_optimizer",
    "parallel.elastic",
    "parallel.elastic_timeout",
    "parallel.heartbeat",
    "parallel.lost_after",
    "parallel.dist_url",
    "parallel.dist_backend",
    "parallel.link",
    "parallel.dist_interface",
    "parallel.job_id",
    "parallel.job_secret_file",
    "parallel.insecure",
];

/// Keys that say which device computes what. They are taken from a saved configuration together, if the run had one
/// process, and this session has one and gives none of them.
pub const PLACEMENT_KEYS: [&str; 4] =
    ["parallel.gpu_ids", "parallel.replicas_per_device", "parallel.stages", "parallel.split_points"];

/// Keys that a run of several processes has.
const OF_PROCESSES: [&str; 4] = ["parallel.rank", "parallel.nnodes", "parallel.elastic", "parallel.dist_url"];

/// Keys with values that may be addresses.
const ADDRESSES: [&str; 3] = ["data.dir", "model.pretrained", "checkpoint.url"];

/// The key of a file outside a run's directory that is written.
const WRITTEN: &str = "checkpoint.path";

#[derive(Clone)]
pub(super) struct Layers {
    pub(super) defaults: Layer,
    /// What the source of the images implies, then what the pretrained weights do. A saved configuration has every key.
    pub(super) implied: [Layer; 2],
    /// The values of a checkpoint, which someone else may have written.
    saved: Option<Layer>,
    /// The defaults of the script that the command line comes from; a saved configuration needs none.
    origin: Layer,
    files: Vec<Layer>,
    /// Settings of `--fast-dev-run`.
    pub(super) dev_run: Layer,
    environment: Layer,
    arguments: Layer,
    flags: Layer,
    /// Settings from a launcher's variables.
    pub(super) launcher: Layer,
}

impl Layers {
    /// The layers of `request`, and their errors; `dev_run` and `launcher` are still empty.
    pub(super) fn of(request: &Request) -> (Self, Complaints) {
        let mut complaints = Complaints { lines: request.complaints.clone(), ..Complaints::default() };
        let origin = origin::of(request).unwrap_or_else(|complaint| {
            complaints.lines.push(complaint);
            None
        });
        let layers = Reader { request, complaints: &mut complaints, origin }.layers();
        (layers, complaints)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Layer> {
        std::iter::once(&self.defaults).chain(&self.implied).chain(self.by_the_user())
    }

    fn all_mut(&mut self) -> Vec<&mut Layer> {
        let Self { defaults, implied, saved, origin, files, dev_run, environment, arguments, flags, launcher } = self;
        std::iter::once(defaults)
            .chain(implied)
            .chain(saved)
            .chain([origin])
            .chain(files)
            .chain([dev_run, environment, arguments, flags, launcher])
            .collect()
    }

    /// All layers but the defaults and what is implied, the weakest first.
    pub(super) fn by_the_user(&self) -> impl DoubleEndedIterator<Item = &Layer> {
        self.saved.iter().chain([&self.origin]).chain(self.in_session())
    }

    fn in_session(&self) -> impl DoubleEndedIterator<Item = &Layer> {
        self.files.iter().chain([&self.dev_run, &self.environment, &self.arguments, &self.flags, &self.launcher])
    }

    /// Complaints about addresses and a file to write that only a checkpoint names: a stranger who wrote it could
    /// provide data, receive weights, or choose what is overwritten. The address that the run is resumed from was
    /// typed.
    pub(super) fn untyped_addresses(&self) -> Vec<String> {
        let resumed = self.chosen("checkpoint.resume").and_then(|(value, _)| value.as_str()).map(Path::new);
        let is_copy = |path: &&Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"));
        let complaint = |key: &&str| {
            let (value, place) = self.saved.as_ref()?.find(key)?;
            let address = Path::new(value.as_str()?);
            let is_resumed =
                resumed == Some(address) || resumed.filter(is_copy).and_then(Path::parent) == Some(address);
            let is_typed = is_resumed || self.in_session().any(|layer| layer.find(key).is_some());
            let (shown, flag) = (shown(address), flag::setting(key, value.as_str()?));
            let is_written = *key == WRITTEN;
            let rule = if is_written { "files are written" } else { "addresses are used" };
            let remedy = if is_written { "or --checkpoint= for no copy" } else { "after a -- for 'train verify'" };
            ((is_written || is_url(address)) && !is_typed).then(|| {
                format!(
                    "'{shown}' is from a checkpoint ({place}); its {rule} only if you give them: add {flag}, {remedy}"
                )
            })
        };
        ADDRESSES.iter().chain([&WRITTEN]).filter_map(complaint).collect()
    }

    /// The user's value of `key`, and where it was set.
    pub(super) fn chosen(&self, key: &str) -> Option<(&toml::Value, &str)> {
        self.by_the_user().rev().find_map(|layer| layer.find(key))
    }

    /// The value of `key` that was given for this session, but by no launcher, and where.
    pub(super) fn typed(&self, key: &str) -> Option<(&toml::Value, &str)> {
        let layers = self.files.iter().chain([&self.environment, &self.arguments, &self.flags]);
        layers.rev().find_map(|layer| layer.find(key))
    }

    /// The place on the command line where `key` was given.
    pub(super) fn on_command_line(&self, key: &str) -> Option<&str> {
        [&self.flags, &self.arguments].into_iter().find_map(|layer| layer.find(key)).map(|(_, place)| place)
    }

    /// All keys that [`Layers::typed`] has a value for.
    pub(super) fn typed_keys(&self) -> BTreeSet<String> {
        let layers = self.files.iter().chain([&self.environment, &self.arguments, &self.flags]);
        layers.flat_map(Layer::entries).map(|(key, ..)| key.to_string()).collect()
    }

    /// Whether the value of `key` is that of a resumed run.
    pub(super) fn is_saved(&self, key: &str) -> bool {
        self.saved.is_some() && self.typed(key).is_none()
    }

    pub(super) fn is_dev_run(&self) -> bool {
        self.chosen("run.fast_dev_run").and_then(|(value, _)| value.as_bool()).unwrap_or(false)
    }
}

struct Reader<'a> {
    request: &'a Request,
    complaints: &'a mut Complaints,
    origin: Option<&'static Origin>,
}

impl Reader<'_> {
    /// What `name` means as a word of another trainer: of the origin, or of any.
    fn alias(&self, name: &str) -> Option<Named> {
        self.origin.and_then(|origin| origin.word(name)).or_else(|| alias::find(name))
    }

    /// Whether `value` stands for no value of `key`. Torch's `env://` does, which refers to a launcher's variables:
    /// they are always read. -1 does in scripts that ask those variables then.
    fn is_unset(&self, key: &str, value: &str) -> bool {
        let is_asked = self.origin.is_some() && ["parallel.world_size", "parallel.rank"].contains(&key);
        (key, value.trim()) == ("parallel.dist_url", "env://") || (is_asked && value == "-1")
    }

    /// Adds the settings of the aliases in `line` to `layer`.
    fn translate(&mut self, line: &[Setting], layer: &mut Layer) {
        for typed in line {
            let read = match self.alias(&typed.key) {
                Some((_, alias)) => alias.read(typed, line),
                None => Err(alias::elsewhere(typed)),
            };
            match read {
                Ok(settings) => settings.into_iter().for_each(|(key, text)| {
                    layer.add_text(key, &text, typed.place.clone(), self.complaints);
                }),
                Err(complaint) => self.complaints.lines.push(complaint),
            }
        }
    }

    fn layers(mut self) -> Layers {
        let defaults = self.toml(DEFAULT_TOML, DEFAULTS);
        let Request { files, config_dirs, .. } = self.request;
        let mut files = self.files(files.iter().map(|path| group::read(path)));
        let (chosen, arguments) = self.arguments();
        files.extend(self.files(chosen.iter().map(|(group, name)| group::find(group, name, config_dirs))));
        let (environment, flags) = (self.environment(), self.flags());
        let (dev_run, launcher) = (Layer::default(), Layer::default());
        let (origin, implied) = (self.origin(self.request.saved.is_some()), Default::default());
        let mut layers =
            Layers { defaults, implied, saved: None, origin, files, dev_run, environment, arguments, flags, launcher };
        layers.saved = self.saved(&layers);
        if layers.saved.is_none() {
            layers.implied = self.implied(&layers);
            let [_, weights] = &layers.implied;
            layers.origin.retain(|key, _| weights.find(key).is_none());
        } else if self.origin.is_some() && layers.typed("data.dir").is_some() {
            // A directory that is typed holds images, whatever the saved run was trained on.
            layers.origin.set("data.source", "folder", "a directory");
        }
        interpolation::replace(&mut layers.all_mut(), &self.request.environment, self.complaints);
        layers
    }

    /// What follows from the source of the images, which may be a reference, and from the pretrained weights.
    fn implied(&mut self, layers: &Layers) -> [Layer; 2] {
        let mut layers = layers.clone();
        interpolation::replace(&mut layers.all_mut(), &self.request.environment, &mut Complaints::default());
        let source = layers.chosen("data.source").and_then(|(source, _)| source.clone().try_into::<Source>().ok());
        let (text, name) = PHOTOGRAPHS;
        let photographs = source.filter(|source| source.is_own()).map(|_| self.toml(text, name));
        let weights = self.request.weights.as_ref();
        let weights = weights.map(|weights| self.toml(&weights.text, &shown(&weights.path)));
        [photographs, weights].map(Option::unwrap_or_default)
    }

    /// The defaults of the origin's script.
    fn origin(&mut self, is_resumed: bool) -> Layer {
        let mut layer = Layer::default();
        if let Some(origin) = self.origin.filter(|_| !is_resumed) {
            let network = self.request.flags.iter().rev().find(|flag| flag.key == "--model");
            let name = network.and_then(|network| network.value.split('.').next()).unwrap_or_default();
            let is_it = |(known, _): &&(&str, _)| *known == name;
            let own = origin.networks.iter().filter(is_it).map(|(_, sets)| *sets);
            for (key, text) in origin.defaults.iter().copied().chain(own).flat_map(alias::pairs) {
                let place = format!("default of {}", origin.script);
                layer.add_text(key, &text, place, self.complaints);
            }
        }
        layer
    }

    fn toml(&mut self, text: &str, file: &str) -> Layer {
        Layer::from_toml(text, file, self.complaints)
    }

    /// The saved configuration without default values, which do not count as the user's choice. `train` never saves
    /// references; one in a checkpoint is refused, since it could send variables of this environment to its author.
    fn saved(&mut self, session: &Layers) -> Option<Layer> {
        let saved = self.request.saved.as_ref()?;
        let file = shown(&saved.path);
        let mut layer = self.toml(&saved.text, &file);
        layer.fill(self.toml(saved.older, &file), &file);
        layer.retain(|key, value| session.defaults.find(key).is_none_or(|(default, _)| default != value));
        let says = |keys: &[&str]| keys.iter().any(|key| session.in_session().any(|it| it.find(key).is_some()));
        let launched = identify(&self.request.environment).ok().flatten().is_some_and(|it| it.processes.value > 1);
        let had_several = OF_PROCESSES.iter().any(|key| layer.find(key).is_some());
        let is_placed_anew = launched || had_several || says(&OF_PROCESSES) || says(&PLACEMENT_KEYS);
        let placement = if is_placed_anew { &PLACEMENT_KEYS[..] } else { &[] };
        let left_out = [&SESSION_KEYS[..], saved.without, placement].concat();
        let is_taken = |key: &str| !left_out.contains(&key);
        layer.retain(|key, _| is_taken(key));
        for Setting { value, place, .. } in std::mem::take(&mut layer.waiting).iter().filter(|it| is_taken(&it.key)) {
            let rule = "checkpoints must hold values only, as 'train' saves them; use another checkpoint";
            self.complaints.lines.push(format!("'{value}' is a reference in a checkpoint ({place}); {rule}"));
        }
        Some(layer)
    }

    /// The layers of files, each its name and text or why there is none.
    fn files(&mut self, files: impl Iterator<Item = Result<(String, String), String>>) -> Vec<Layer> {
        let layer = |file: Result<(String, String), String>| match file {
            Ok((name, text)) => Some(self.toml(&text, &name)),
            Err(complaint) => {
                self.complaints.lines.push(complaint);
                None
            }
        };
        files.filter_map(layer).collect()
    }

    fn arguments(&mut self) -> (Vec<(String, String)>, Layer) {
        let groups = group::groups(&self.request.config_dirs);
        let (mut chosen, mut layer) = (Vec::new(), Layer::default());
        let is_word = |name: &str| self.alias(name).is_some() && groups.iter().all(|group| group != name);
        let word = |argument: &String| {
            let (name, value) = pair(argument).filter(|(key, _)| is_word(key))?;
            let (key, place) = (self.alias(name)?.0.into(), format!("argument '{argument}'"));
            Some(Setting { key, value: value.into(), place })
        };
        let words: Vec<_> = self.request.arguments.iter().filter_map(word).collect();
        self.translate(&words, &mut layer);
        let mut bare = self.request.arguments.iter().filter(|argument| pair(argument).is_none());
        let takes_directory = self.origin.is_some_and(|origin| origin.takes_directory);
        let directory = bare.find(|word| !word.ends_with(".py")).filter(|_| takes_directory);
        let mistaken = mistaken::command(&self.request.arguments).filter(|_| self.origin.is_none());
        self.complaints.lines.extend(mistaken.clone());
        // The words after a command belong to it.
        let is_read = |argument: &&String| mistaken.is_none() || argument.contains('=');
        for argument in self.request.arguments.iter().filter(is_read) {
            let place = format!("argument '{argument}'");
            match pair(argument) {
                None if Some(argument) == directory => {
                    layer.add_text("data.dir", argument, place, self.complaints);
                }
                None if self.origin.is_some_and(|origin| origin.command == Some(argument)) => {}
                None => self.complaints.lines.push(mistaken::argument(argument)),
                Some(_) if words.iter().any(|word| word.place == place) => {}
                Some((key, text)) if self.is_unset(key, text) => {}
                Some((key, text)) if key.contains('.') => {
                    layer.add_text(key, text, place, self.complaints);
                }
                Some((name, text)) if groups.iter().any(|group| group == name) => {
                    chosen.retain(|(group, _)| group != name);
                    chosen.push((name.to_string(), text.to_string()));
                }
                Some((word, text)) => {
                    let hint = || suggestion::for_bare_word(word, text, &groups);
                    self.complaints.unknown(|| format!("unknown key '{word}' ({place}); {}", hint()));
                }
            }
        }
        (chosen, layer)
    }

    fn environment(&mut self) -> Layer {
        let mut layer = Layer::default();
        for (name, text) in &self.request.environment {
            if let Some(path) = name.strip_prefix("TRAIN__") {
                let key = path.to_lowercase().replace("__", ".");
                layer.add_text(&key, text, format!("environment {name}"), self.complaints);
            }
        }
        layer
    }

    fn flags(&mut self) -> Layer {
        let mut layer = Layer::default();
        let is_own = |setting: &Setting| schema::default(&setting.key).is_some();
        let (own, mut foreign): (Vec<_>, Vec<_>) = self.request.flags.iter().cloned().partition(is_own);
        let means_another = |setting: &Setting| self.origin.is_some_and(|origin| origin.word(&setting.place).is_some());
        let (others, own): (Vec<_>, Vec<_>) = own.into_iter().partition(means_another);
        foreign.extend(others.into_iter().map(|setting| Setting { key: setting.place.clone(), ..setting }));
        self.translate(&foreign, &mut layer);
        for Setting { key, value, place } in own {
            if !self.is_unset(&key, &value) {
                layer.add_text(&key, &value, place, self.complaints);
            }
        }
        layer
    }
}
