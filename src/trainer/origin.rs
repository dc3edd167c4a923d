//! The origin of a run: its directory, locked, and the checkpoint that it continues from.
//!
//! The checkpoint is searched twice: when the configuration is resolved, since the checkpoint holds its first layer,
//! and when the run begins, under the lock. `resume.rs` restores its content.

use std::path::{Path, PathBuf};

use kiln_engine::checkpoint::{
    self, CheckpointConfig, Loaded, Lock, MANIFEST, Resume, Store, Which, absent, differences, fetch, newest, run_dir,
};
use kiln_objects::is_url;
use kiln_system::file;
use kiln_system::{Error, Result, shown};

use super::requeue;
use super::resume::{saved, written};
use crate::config::{Config, Request, SESSION_KEYS, Saved, Setting, faults, sketch};

pub(super) const RUNS: &str = "runs";

/// The run's directory, claimed, and the checkpoint to continue from.
pub(super) struct Origin {
    pub(super) directory: PathBuf,
    /// Seconds that this session has taken already, in other processes.
    pub(super) session_seconds: f64,
    pub(super) checkpoint: Option<Loaded>,
    /// Held by the deciding process as long as the run.
    pub(super) lock: Option<Lock>,
}

/// The meaning of `checkpoint.resume`: a directory, and which checkpoint in it.
struct Target {
    /// A run's directory, or a checkpoint's.
    path: PathBuf,
    which: Which,
}

impl Target {
    /// `None` for a new run.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no run to continue.
    fn of(config: &Config) -> Result<Option<Self>> {
        let which = match &config.checkpoint.resume {
            Resume::Off => return Ok(None),
            Resume::Path(path) => return Ok(Some(Self { path: path.clone(), which: Which::Latest })),
            Resume::Latest | Resume::Auto => Which::Latest,
            Resume::Best => Which::Best,
        };
        let none = || format!("there is no run in '{RUNS}' to resume; name its directory with --output-dir");
        let path = named(config).or_else(|| run_dir::last(Path::new(RUNS)));
        Ok(Some(Self { path: path.ok_or_else(|| Error::usage(none()))?, which }))
    }

    fn is_run(&self) -> bool {
        self.path.join("checkpoints").is_dir()
    }

    fn run(&self) -> Option<PathBuf> {
        if self.is_run() {
            return Some(self.path.clone());
        }
        run_dir::of(&self.path)
    }

    /// At least the settings of the checkpoint.
    fn settings(&self) -> Result<Loaded> {
        if !is_url(&self.path) {
            return self.load(&mut |_| {});
        }
        fetch(&self.path, "--resume", |name| name == "config.toml")?.ok_or_else(|| absent(&self.path))
    }

    /// The checkpoint, verified; changes nothing.
    fn load(&self, warn: &mut dyn FnMut(String)) -> Result<Loaded> {
        if self.is_run() { Store::at(&self.path).load(self.which, warn) } else { checkpoint::read(&self.path) }
    }
}

/// Adds the configuration of the checkpoint that `request` resumes, if this process can read one.
///
/// # Errors
/// [`Error::Checkpoint`] if the named checkpoint, or the `config.toml` of its run, is damaged; [`Error::Usage`] if
/// `--resume auto` has no directory.
pub(super) fn with_saved(mut request: Request) -> Result<Request> {
    let Some(mut config) = sketch(&request) else { return Ok(request) };
    // Its errors are reported when the run begins.
    let _ = requeue::prepare(&mut config);
    let parallel = &config.parallel;
    // The other processes may have no access to it.
    let decides = parallel.rank == 0 && (!parallel.elastic.is_on() || parallel.dist_url.is_empty());
    if config.checkpoint.resume == Resume::Auto && config.run.output_dir.as_os_str().is_empty() {
        let reason = "--resume auto needs a named directory; give --output-dir DIR";
        return Err(Error::usage(reason));
    }
    if decides && let Err(error) = inspect(&config) {
        // Wrong settings are reported first, all together.
        return if faults(&request).is_empty() { Err(error) } else { Ok(request) };
    }
    let Ok(Some(target)) = Target::of(&config) else { return Ok(request) };
    let (mut from, url) = ("latest".to_string(), &config.checkpoint.url);
    let is_copied = config.checkpoint.resume == Resume::Auto && !url.as_os_str().is_empty();
    let copy = || fetch(url, "--checkpoint-url", |name| name == "config.toml");
    let loaded = match target.settings() {
        // Another machine may have gone further.
        Ok(loaded) if is_copied && newest(url)?.is_some_and(|step| step > loaded.step) => {
            from = url.display().to_string();
            copy()?.unwrap_or(loaded)
        }
        Ok(loaded) => loaded,
        Err(_) if is_copied => {
            let Some(loaded) = copy()? else { return Ok(request) };
            from = url.display().to_string();
            loaded
        }
        // An error now, and not a later one about the data of the default configuration.
        Err(error) if decides && config.checkpoint.resume != Resume::Auto => return Err(error),
        Err(damage @ Error::Checkpoint(_)) if is_checkpoint(&target.path) || is_url(&target.path) => {
            return Err(damage);
        }
        Err(_) => return Ok(request),
    };
    let saved = saved(&loaded)?;
    let shown = target.run().map(|run| run.join("config.toml")).filter(|shown| shown.exists());
    let note = shown.map(|shown| difference(&saved, &shown)).transpose()?.flatten();
    request.saved = Some(Saved { note, ..saved });
    if config.checkpoint.resume == Resume::Auto {
        let key = "checkpoint.resume".to_string();
        request.flags.push(Setting { key, value: from, place: "--resume auto".into() });
    }
    Ok(request)
}

/// How the `config.toml` in a run's directory differs from the settings in the checkpoint.
fn difference(saved: &Saved, copy: &Path) -> Result<Option<String>> {
    let read = file::text(copy, file::TEXT).map_err(|reason| reason.to_string());
    let read = read.map(|text| written(copy.into(), text).whole());
    let parsed = read.and_then(|text| match toml::from_str::<Config>(&text) {
        Ok(_) => Ok(text),
        Err(reason) => Err(reason.message().replace('\n', ", ")),
    });
    let text = parsed.map_err(|reason| {
        let (copy, saved) = (shown(copy), shown(&saved.path));
        Error::Checkpoint(format!("'{copy}' is damaged: {reason}; move it away to use the settings in '{saved}'"))
    })?;
    let sections = ["run", "data", "model", "parallel", "optim", "schedule", "checkpoint"];
    let mut changed = differences(&saved.whole(), &text, &sections);
    changed.retain(|line| !SESSION_KEYS.iter().any(|key| line.strip_prefix(key).is_some_and(|it| it.starts_with(':'))));
    let changed = changed.join("; ");
    Ok((!changed.is_empty())
        .then(|| format!("'{}' is ignored where it differs from the checkpoint's settings: {changed}", shown(copy))))
}

/// Checks that [`origin`] would succeed now; changes nothing.
pub(super) fn inspect(config: &Config) -> Result<()> {
    let CheckpointConfig { resume, url, .. } = &config.checkpoint;
    if *resume == Resume::Off && !url.as_os_str().is_empty() && fetch(url, "--checkpoint-url", |_| false)?.is_some() {
        let url = shown(url);
        return Err(Error::usage(format!(
            "'{url}' already holds the checkpoints of another run; resume that run with --resume {url}, or give \
             another --checkpoint-url"
        )));
    }
    let target = Target::of(config)?;
    if let Some(target) = target.as_ref().filter(|_| *resume != Resume::Auto) {
        is_there(target, resume)?;
    }
    let known = named(config).or_else(|| target.as_ref()?.run());
    let is_lost = |target: &Target| known.is_none() && !is_url(&target.path);
    if let Some(target) = target.as_ref().filter(|target| is_lost(target)) {
        return Err(lost(target));
    }
    let directory = known.unwrap_or_else(|| RUNS.into());
    run_dir::check(&directory, *resume != Resume::Off).map_err(elsewhere)
}

fn named(config: &Config) -> Option<PathBuf> {
    Some(config.run.output_dir.clone()).filter(|dir| !dir.as_os_str().is_empty())
}

/// The checkpoint that the run continues from, without claiming anything.
pub(super) fn continued(config: &Config) -> Result<Option<Loaded>> {
    let Some(target) = Target::of(config)? else { return Ok(None) };
    let loaded = unless_auto(&config.checkpoint.resume, target.load(&mut |_| {}))?;
    is_newest(&config.checkpoint.url, loaded.as_ref())?;
    Ok(loaded)
}

/// Refuses a place for copies that has newer ones than the checkpoint: the run would move its `latest` back.
fn is_newest(url: &Path, checkpoint: Option<&Loaded>) -> Result<()> {
    let own = checkpoint.map_or(0, |checkpoint| checkpoint.step);
    let copied = if url.as_os_str().is_empty() { None } else { newest(url)? };
    match copied.filter(|step| *step > own) {
        None => Ok(()),
        Some(step) => {
            let url = shown(url);
            Err(Error::usage(format!(
                "'{url}' has a copy of step {step}, but the run would resume from step {own}; use the copy with \
                 --resume {url}, or give another --checkpoint-url"
            )))
        }
    }
}

/// With `--resume auto`, a missing checkpoint means a new run.
fn unless_auto(resume: &Resume, loaded: Result<Loaded>) -> Result<Option<Loaded>> {
    match loaded {
        Err(Error::Checkpoint(_)) if *resume == Resume::Auto => Ok(None),
        loaded => loaded.map(Some),
    }
}

/// Decides where the run writes and what it continues. Creates directories, so it is the last preparation.
pub(super) fn origin(config: &Config, warn: &mut dyn FnMut(String)) -> Result<Origin> {
    inspect(config)?;
    let (named, resume) = (named(config), &config.checkpoint.resume);
    let Some(target) = Target::of(config)? else {
        let directory = named.map_or_else(|| run_dir::next(Path::new(RUNS)), Ok).map_err(elsewhere)?;
        let lock = claim(&directory, false, warn)?;
        return Ok(Origin { directory, session_seconds: 0.0, checkpoint: None, lock: Some(lock) });
    };
    if named.is_none() && !matches!(resume, Resume::Path(_)) {
        let unsaved = run_dir::unsaved(Path::new(RUNS)).into_iter();
        unsaved.for_each(|run| warn(format!("'{}' has no checkpoint, so it is not resumed", shown(&run))));
    }
    // Loaded before claiming: a path without a checkpoint must not be claimed.
    let is_checkpoint = matches!(resume, Resume::Path(_)) && !target.is_run();
    let named_checkpoint = is_checkpoint.then(|| target.load(warn)).transpose()?;
    let fresh = || is_url(&target.path).then(|| run_dir::next(Path::new(RUNS)));
    let known = named.or_else(|| target.run()).map(Ok).or_else(fresh).transpose()?;
    let directory = known.ok_or_else(|| lost(&target))?;
    let lock = claim(&directory, true, warn)?;
    let checkpoint = unless_auto(resume, named_checkpoint.map_or_else(|| target.load(warn), Ok))?;
    is_newest(&config.checkpoint.url, checkpoint.as_ref())?;
    Ok(Origin { directory, session_seconds: 0.0, checkpoint, lock: Some(lock) })
}

/// The error for a checkpoint outside of a run, if no directory is named for the new steps.
fn lost(target: &Target) -> Error {
    let place = shown(&target.path);
    Error::usage(format!("'{place}' is not in a run's directory; name one with --output-dir"))
}

/// Refuses a path that is neither a checkpoint nor a run with checkpoints.
fn is_there(target: &Target, resume: &Resume) -> Result<()> {
    if is_url(&target.path) {
        return Ok(());
    }
    let path = shown(&target.path);
    if !target.path.exists() && !checkpoint::is_there(&target.path) {
        let runs = Path::new(RUNS);
        let latest = run_dir::last(runs).map(|run| format!(" (the latest is '{}')", shown(&run)));
        return Err(Error::usage(format!(
            "there is no '{path}' to resume; give a run{} or one of its checkpoints, or start a new run without \
             --resume",
            latest.unwrap_or_default()
        )));
    }
    // What is damaged says so itself, with a remedy.
    let is_one = || is_checkpoint(&target.path) || run_dir::of(&target.path).is_some();
    let is_begun = if target.is_run() { run_dir::is_begun(&target.path) } else { is_one() };
    if is_begun {
        return Ok(());
    }
    let other = if matches!(resume, Resume::Path(_)) { "run or checkpoint" } else { "--output-dir" };
    // Such as a file of PyTorch's.
    let weights =
        if target.path.is_file() { format!(", --pretrained {path} for weights alone") } else { String::new() };
    Err(Error::usage(format!(
        "'{path}' holds no checkpoint to resume from; give another {other}{weights}, or start a new run without --resume"
    )))
}

/// Whether `path` is a checkpoint, or one that is being replaced.
fn is_checkpoint(path: &Path) -> bool {
    path.join(MANIFEST).is_file() || (checkpoint::is_there(path) && !path.is_dir())
}

/// Locks the directory, and repairs what a killed run left before anything is read.
fn claim(directory: &Path, resuming: bool, warn: &mut dyn FnMut(String)) -> Result<Lock> {
    let lock = run_dir::claim(directory, resuming, warn).map_err(elsewhere)?;
    Store::open(directory)?;
    Ok(lock)
}

fn elsewhere(error: Error) -> Error {
    match error {
        Error::Io { .. } => Error::usage(format!("{error}; give another --output-dir")),
        other => other,
    }
}
