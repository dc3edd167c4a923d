//! The origin of a run: its directory, locked, and the checkpoint that it continues from.
//!
//! The checkpoint is searched twice: when the configuration is resolved, whose first layer is the configuration in it,
//! and when the run begins, under the lock. `resume.rs` restores its content.

use std::path::{Path, PathBuf};

use super::requeue;
use super::resume::settings;
use crate::checkpoint::{self, Loaded, Lock, MANIFEST, Resume, Store, Which, absent, differences, fetch, run_dir};
use crate::config::{Config, Request, SESSION_KEYS, Saved, Setting, sketch};
use crate::error::{Error, Result};
use crate::file;
use crate::objects::is_url;

/// The directory of numbered runs.
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
    /// `None` for a new run, or if the directory does not exist.
    fn of(config: &Config) -> Option<Self> {
        let output = &config.run.output_dir;
        let which = match &config.checkpoint.resume {
            Resume::Off => return None,
            Resume::Path(path) => return Some(Self { path: path.clone(), which: Which::Latest }),
            Resume::Latest | Resume::Auto => Which::Latest,
            Resume::Best => Which::Best,
        };
        let is_named = !output.as_os_str().is_empty();
        let path = if is_named { Some(output.clone()) } else { run_dir::last(Path::new(RUNS)) };
        Some(Self { path: path?, which })
    }

    fn is_run(&self) -> bool {
        self.path.join("checkpoints").is_dir()
    }

    fn is_checkpoint(&self) -> bool {
        self.path.join(MANIFEST).is_file()
    }

    /// The run of the checkpoint.
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
        fetch(&self.path, "--resume", is_settings)?.ok_or_else(|| absent(&self.path))
    }

    /// The checkpoint, verified; changes nothing.
    fn load(&self, warn: &mut dyn FnMut(String)) -> Result<Loaded> {
        if self.is_run() { Store::at(&self.path).load(&self.which, warn) } else { checkpoint::read(&self.path) }
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
    if config.checkpoint.resume == Resume::Auto && config.run.output_dir.as_os_str().is_empty() {
        let reason = "--resume auto must know the run's directory before it exists; name it with --output-dir DIR";
        return Err(Error::usage(reason));
    }
    let Some(target) = Target::of(&config) else { return Ok(request) };
    let (mut from, url) = ("latest".to_string(), &config.checkpoint.url);
    let loaded = match target.settings() {
        Ok(loaded) => loaded,
        Err(_) if config.checkpoint.resume == Resume::Auto && !url.as_os_str().is_empty() => {
            let Some(loaded) = fetch(url, "--checkpoint-url", is_settings)? else { return Ok(request) };
            from = url.display().to_string();
            loaded
        }
        // An error now, and not a later one about the data of the default configuration.
        Err(damage @ Error::Checkpoint(_)) if target.is_checkpoint() || is_url(&target.path) => return Err(damage),
        // It may exist later: under the lock what a kill left is restored, and a job in the queue may write one.
        Err(_) => return Ok(request),
    };
    let saved = saved(&loaded)?;
    let shown = target.run().map(|run| run.join("config.toml")).filter(|shown| shown.exists());
    let note = shown.map(|shown| difference(&saved, &shown)).transpose()?.flatten();
    request.saved = Some(Saved { note, ..saved });
    if config.checkpoint.resume == Resume::Auto {
        let key = "checkpoint.resume".to_string();
        request.flags.push(Setting { key, value: from, flag: "--resume auto".into() });
    }
    Ok(request)
}

/// The configuration in a checkpoint.
pub(super) fn saved(loaded: &Loaded) -> Result<Saved> {
    Ok(Saved { path: loaded.path.join("config.toml"), text: settings(loaded)?, note: None, without: &[] })
}

/// How the `config.toml` in a run's directory differs from the settings in the checkpoint.
fn difference(saved: &Saved, shown: &Path) -> Result<Option<String>> {
    let read = file::text(shown, file::TEXT).map_err(|reason| reason.to_string());
    let parsed = read.and_then(|text| match toml::from_str::<Config>(&text) {
        Ok(_) => Ok(text),
        Err(reason) => Err(reason.message().replace('\n', ", ")),
    });
    let text = parsed.map_err(|reason| {
        let (shown, saved) = (shown.display(), saved.path.display());
        Error::Checkpoint(format!(
            "'{shown}' is damaged: {reason}; move it away to go on with the settings in '{saved}'"
        ))
    })?;
    let sections = ["run", "data", "model", "parallel", "optim", "schedule", "checkpoint"];
    let mut changed = differences(&saved.text, &text, &sections);
    changed.retain(|line| !SESSION_KEYS.iter().any(|key| line.strip_prefix(key).is_some_and(|it| it.starts_with(':'))));
    let changed = changed.join("; ");
    Ok((!changed.is_empty())
        .then(|| format!("'{}' differs from the checkpoint's settings, which are used: {changed}", shown.display())))
}

/// Decides where the run writes and what it continues. Creates directories, so it is the last preparation.
pub(super) fn origin(config: &Config, warn: &mut dyn FnMut(String)) -> Result<Origin> {
    let named = Some(config.run.output_dir.clone()).filter(|dir| !dir.as_os_str().is_empty());
    let (resume, url) = (&config.checkpoint.resume, &config.checkpoint.url);
    if *resume == Resume::Off {
        if !url.as_os_str().is_empty() && fetch(url, "--checkpoint-url", |_| false)?.is_some() {
            let url = url.display();
            return Err(Error::usage(format!(
                "'{url}' already holds copies of checkpoints; a new run needs a place of its own: continue that run with \
                 --resume {url}, or give another --checkpoint-url"
            )));
        }
        let directory = named.map_or_else(|| run_dir::next(Path::new(RUNS)), Ok).map_err(elsewhere)?;
        let lock = claim(&directory, false, warn)?;
        return Ok(Origin { directory, session_seconds: 0.0, checkpoint: None, lock: Some(lock) });
    }
    let target = Target::of(config).ok_or_else(|| {
        Error::usage(format!("there is no run in '{RUNS}' to resume; name its directory with --output-dir"))
    })?;
    if *resume != Resume::Auto {
        is_there(&target, resume)?;
    }
    if named.is_none() && !matches!(resume, Resume::Path(_)) {
        let unsaved = run_dir::unsaved(Path::new(RUNS)).into_iter();
        unsaved.for_each(|run| warn(format!("'{}' has no checkpoint, so it is not resumed", run.display())));
    }
    // Loaded before claiming: a path without a checkpoint must not be claimed.
    let is_checkpoint = matches!(resume, Resume::Path(_)) && !target.is_run();
    let named_checkpoint = is_checkpoint.then(|| target.load(warn)).transpose()?;
    let fresh = || is_url(&target.path).then(|| run_dir::next(Path::new(RUNS)));
    let known = named.or_else(|| target.run()).map(Ok).or_else(fresh).transpose()?;
    let directory = known.ok_or_else(|| {
        let place = target.path.display();
        Error::usage(format!("'{place}' is not in a run's directory; name one with --output-dir"))
    })?;
    let lock = claim(&directory, true, warn)?;
    let checkpoint = match named_checkpoint.map_or_else(|| target.load(warn), Ok) {
        Err(Error::Checkpoint(_)) if *resume == Resume::Auto => None,
        loaded => Some(loaded?),
    };
    Ok(Origin { directory, session_seconds: 0.0, checkpoint, lock: Some(lock) })
}

/// Whether a file of a checkpoint is that of its settings.
fn is_settings(name: &str) -> bool {
    name == "config.toml"
}

/// Refuses a path that is neither a checkpoint nor a run with checkpoints.
fn is_there(target: &Target, resume: &Resume) -> Result<()> {
    if is_url(&target.path) {
        return Ok(());
    }
    let path = target.path.display();
    if !target.path.exists() && !checkpoint::is_there(&target.path) {
        let runs = Path::new(RUNS);
        let latest = run_dir::last(runs).map(|run| format!(" (the latest is '{}')", run.display()));
        return Err(Error::usage(format!(
            "there is no '{path}' to resume; give a run{} or one of its checkpoints, or start anew without --resume",
            latest.unwrap_or_default()
        )));
    }
    if !target.is_run() && !matches!(resume, Resume::Path(_)) {
        let remedy = "give another --output-dir, or start anew without --resume";
        return Err(Error::usage(format!("'{path}' holds no checkpoints to resume from; {remedy}")));
    }
    let is_empty = |dir: PathBuf| std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    // A save that was killed halfway is only repaired under the lock.
    if is_empty(target.path.join("checkpoints")) { target.load(&mut |_| {}).map(drop) } else { Ok(()) }
}

/// Locks the directory, and repairs what a killed run left before anything is read.
fn claim(directory: &Path, resuming: bool, warn: &mut dyn FnMut(String)) -> Result<Lock> {
    let lock = run_dir::claim(directory, resuming, warn).map_err(elsewhere)?;
    Store::open(directory)?;
    Ok(lock)
}

/// Adds the remedy to an error of the run's directory.
fn elsewhere(error: Error) -> Error {
    match error {
        Error::Io { .. } => Error::usage(format!("{error}; give another --output-dir")),
        other => other,
    }
}
