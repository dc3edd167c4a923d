//! Copies of a run's checkpoints in an object store or another directory.
//!
//! They have the names of the run's directory: `step-00000042/model.safetensors` and so on, the manifest last, then
//! `latest`, which holds `step-00000042`. So `latest` always names a whole copy. A thread of its own writes them; a
//! checkpoint that is followed by a newer one before its turn is left out.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use kiln_objects::{Objects, is_url};
use kiln_system::file::{self, GIB, TEXT};
use kiln_system::{Error, Result, shown};
use parking_lot::Mutex;

use super::MANIFEST;
use super::content::Entry;
use super::manifest::Manifest;
use super::reading::{self, Loaded, step_of};

/// The object with the name of the newest whole copy.
const LATEST: &str = "latest";

/// Most bytes of a file of a copy, whatever its manifest says.
const LARGEST: u64 = GIB;

/// For how long a request for a copy is repeated.
const PATIENCE: f64 = 60.0;

type Warn = fn(&str);

/// The thread that copies, and its queue.
type Copier = (Sender<PathBuf>, JoinHandle<Result<()>>);

#[derive(Debug)]
pub struct Copies {
    url: PathBuf,
    objects: Arc<Objects>,
    warn: Warn,
    thread: Mutex<Option<Copier>>,
}

impl Copies {
    /// Copies below `url`, which are written for at most `retry_seconds` each.
    ///
    /// # Errors
    /// [`Error::Usage`] if the URL holds credentials or this build cannot reach it.
    pub fn open(url: &Path, retry_seconds: f64, warn: Warn) -> Result<Self> {
        let objects = Arc::new(Objects::open(url, "--checkpoint-url", retry_seconds)?);
        Ok(Self { url: url.into(), objects, warn, thread: Mutex::default() })
    }

    /// Copies the checkpoint in the directory `path`, without waiting for it.
    pub fn send(&self, path: PathBuf) {
        let mut thread = self.thread.lock();
        let (queue, _) = thread.get_or_insert_with(|| {
            let ((queue, queued), objects) = (channel(), self.objects.clone());
            let (url, warn) = (self.url.clone(), self.warn);
            (queue, std::thread::spawn(move || copy_all(&queued, &objects, &url, warn)))
        });
        // The thread ends only when there is no sender.
        let _ = queue.send(path);
    }

    /// Waits for the last copy.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if that failed.
    pub fn finish(&self) -> Result<()> {
        let thread = self.thread.lock().take();
        let Some((queue, thread)) = thread else { return Ok(()) };
        drop(queue);
        thread.join().unwrap_or_else(|_| Err(Error::Checkpoint("the thread that copies checkpoints died".into())))
    }
}

/// Copies what comes until there is no sender; returns the outcome of the last copy.
fn copy_all(queued: &Receiver<PathBuf>, objects: &Objects, url: &Path, warn: Warn) -> Result<()> {
    let (mut whole, mut outcome) = (Vec::new(), Ok(()));
    while let Ok(path) = queued.recv() {
        let path = queued.try_iter().last().unwrap_or(path);
        let failed_before = outcome.is_err();
        outcome = match copy(objects, &path, &mut whole) {
            // It is no longer kept, so there are newer ones.
            Err(_) if !path.exists() => continue,
            copied => copied.map_err(|reason| {
                let (path, url) = (shown(&path), shown(url));
                Error::Checkpoint(format!("'{path}' was not copied to '{url}': {reason}"))
            }),
        };
        if let (Err(error), false) = (&outcome, failed_before) {
            warn(&format!("warning: {error}; training goes on, and the next checkpoint is copied"));
        }
    }
    outcome
}

/// Copies one checkpoint and deletes copies in `whole` of those that are no longer kept.
fn copy(objects: &Objects, path: &Path, whole: &mut Vec<(String, Manifest)>) -> std::result::Result<(), String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let manifest = Manifest::read(path).map_err(|reason| reason.to_string())?;
    for file in manifest.files.keys().map(String::as_str).chain([MANIFEST]) {
        let content = file::map(&path.join(file), u64::MAX).map_err(|reason| reason.to_string())?;
        objects.put(&format!("{name}/{file}"), content).map_err(|reason| reason.to_string())?;
    }
    objects.put(LATEST, name.clone().into_bytes()).map_err(|reason| reason.to_string())?;
    whole.retain(|(other, _)| *other != name);
    let gone = whole.extract_if(.., |(other, _)| !path.with_file_name(other).exists());
    for (other, manifest) in gone.collect::<Vec<_>>() {
        for file in [MANIFEST].into_iter().chain(manifest.files.keys().map(String::as_str)) {
            objects.delete(&format!("{other}/{file}")).map_err(|reason| reason.to_string())?;
        }
    }
    whole.push((name, manifest));
    Ok(())
}

/// The refusal of a URL without copies.
pub fn absent(url: &Path) -> Error {
    let rule = "give the URL of --checkpoint-url, or of one of the copies, such as URL/step-00000042";
    Error::Checkpoint(format!("there is no checkpoint at '{}'; {rule}", shown(url)))
}

/// The step of the newest copy at `url`, which `--checkpoint-url` names; `None` if there is none.
///
/// # Errors
/// [`Error::Checkpoint`] if the store cannot be read.
pub fn newest(url: &Path) -> Result<Option<usize>> {
    let objects = Objects::open(url, "--checkpoint-url", PATIENCE)?;
    let name = objects.get(LATEST, 64);
    let name = name.map_err(|reason| Error::Checkpoint(format!("'{}/{LATEST}': {reason}", shown(url))))?;
    Ok(name.and_then(|name| step_of(String::from_utf8_lossy(&name).trim())))
}

/// Reads the checkpoint at `path`, a directory or a URL, after verifying every byte.
///
/// # Errors
/// [`Error::Checkpoint`] with the reason, and with the name of another intact checkpoint if there is one.
pub fn read(path: &Path) -> Result<Loaded> {
    if !is_url(path) {
        return reading::read(path);
    }
    fetch(path, "--checkpoint", |_| true)?.ok_or_else(|| absent(path))
}

/// Reads the checkpoint at `url`, which the option `flag` names: the newest of a run's copies or one of them, and only
/// the files that are `wanted`. `None` if there is none.
///
/// # Errors
/// [`Error::Checkpoint`] if it is damaged or cannot be read.
pub fn fetch(url: &Path, flag: &str, wanted: impl Fn(&str) -> bool) -> Result<Option<Loaded>> {
    let objects = Objects::open(url, flag, PATIENCE)?;
    let get = |name: &str, most: u64| {
        objects.get(name, most).map_err(|reason| Error::Checkpoint(format!("'{}/{name}': {reason}", shown(url))))
    };
    let damaged = |name: &str, fault: &str| {
        Error::Checkpoint(format!("'{}/{name}' {fault}; give another checkpoint with --resume", shown(url)))
    };
    let is_one = url.file_name().is_some_and(|name| step_of(&name.to_string_lossy()).is_some());
    let place = if is_one {
        String::new()
    } else {
        let Some(name) = get(LATEST, 64)? else { return Ok(None) };
        let name = String::from_utf8_lossy(&name).trim().to_string();
        step_of(&name).ok_or_else(|| damaged(LATEST, &format!("names '{name}', which is no checkpoint beside it")))?;
        name + "/"
    };
    let document = format!("{place}{MANIFEST}");
    let Some(manifest) = get(&document, TEXT)? else { return Ok(None) };
    let manifest = Manifest::parse(&manifest).map_err(|fault| damaged(&document, &fault))?;
    let mut files = std::collections::BTreeMap::new();
    for (name, entry) in manifest.files.iter().filter(|(name, _)| wanted(name)) {
        let object = format!("{place}{name}");
        let bytes = get(&object, entry.size.min(LARGEST))?.ok_or_else(|| damaged(&object, "is not there"))?;
        if Entry::of(&bytes) != *entry {
            return Err(damaged(&object, &format!("is damaged: its size or SHA-256 is not the one in {MANIFEST}")));
        }
        files.insert(name.clone(), bytes);
    }
    let path = url.join(place.trim_end_matches('/'));
    Ok(Some(Loaded { path, step: manifest.step, epoch: manifest.epoch, files }))
}
