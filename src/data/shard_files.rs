//! Files with many samples each: which there are, which split each belongs to, and an index of all of them.
//!
//! The name of a file says its split, as in `train-00000-of-00002.parquet` or `val/0001.tar`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_objects::is_url;
use kiln_system::{Error, Result, shown};

use super::Progress;
use super::braces;
use super::classes;
use super::config::DataConfig;
use super::found_samples::FoundSamples;
use super::index::{Head, Index, Sample, Stamp, newest};
use super::samples::in_parallel;
use super::store::{Directory, Store};

/// The words that name a split; the first of validation's that there are is taken.
pub(super) const SPLITS: [&[&str]; 3] = [&["train", "training"], &["val", "valid", "validation"], &["test"]];

/// What the names of compressed files end in.
const COMPRESSED: [&str; 7] = [".gz", ".tgz", ".zst", ".bz2", ".xz", ".lz4", ".zip"];

/// Where the hub's data sets have their files, if not at their root.
const INNER: &str = "data";

/// Most classes without names.
pub(super) const MOST_CLASSES: u32 = 1 << 20;

/// A kind of such files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// What `--data` says; also the name of the index.
    source: &'static str,
    suffix: &'static str,
}

pub(super) const TAR: Kind = Kind { source: "webdataset", suffix: ".tar" };
pub(super) const PARQUET: Kind = Kind { source: "parquet", suffix: ".parquet" };

#[derive(Debug)]
pub(super) struct ShardFiles {
    kind: Kind,
    pub(super) store: Arc<dyn Store>,
    /// The files for training, then those for validation, then others that the index depends on.
    stamps: Vec<Stamp>,
    training: usize,
    shards: usize,
}

impl ShardFiles {
    /// Those in `config.dir`, which may be a pattern such as `data/{train,val}-{000..127}.tar`, and the first of
    /// `others` that lies beside them.
    pub(super) fn find(kind: Kind, config: &DataConfig, others: &[&str]) -> Result<Self> {
        let (store, [training, validation]) = kind.find(config)?;
        let (in_training, shards) = (training.len(), training.len() + validation.len());
        let names: Vec<String> = training.into_iter().chain(validation).collect();
        let stamp = |name: String| {
            let missing = || {
                Error::Data(format!(
                    "cannot read '{}': there is no such file; {}",
                    shown(store.path(&name)),
                    kind.layout()
                ))
            };
            store.stamp(&name)?.ok_or_else(missing)
        };
        let threads = store.parallel();
        let mut stamps = in_parallel(names, usize::MAX, threads, stamp, |_, _| ())?;
        for name in others {
            if let Some(other) = store.stamp(name)?.filter(|stamp| stamp.bytes > 0) {
                stamps.push(other);
                break;
            }
        }
        Ok(Self { kind, store, stamps, training: in_training, shards })
    }

    /// The files with samples.
    pub(super) fn shards(&self) -> &[Stamp] {
        &self.stamps[..self.shards]
    }

    pub(super) fn other(&self) -> Option<&Stamp> {
        self.stamps.get(self.shards)
    }

    /// The index that an earlier start kept, if no file has changed.
    pub(super) fn kept(&self, config: &DataConfig) -> Option<Index> {
        Index::kept(&self.places(), &self.stamps, config)
    }

    fn places(&self) -> Vec<PathBuf> {
        self.store.index_places(self.kind.source)
    }

    /// An index of what `read` finds in each file. Classes without names are numbers.
    pub(super) fn index(
        &self,
        classes: Option<Vec<String>>,
        config: &DataConfig,
        progress: &dyn Fn(Progress),
        read: impl Fn(u32, &Stamp) -> Result<FoundSamples> + Sync,
    ) -> Result<Index> {
        let what = shown(self.store.path(""));
        let report = |done, total| progress(Progress::Files { what: what.clone(), done, total });
        let files: Vec<(u32, &Stamp)> = (0..).zip(self.shards()).collect();
        let threads = self.store.parallel();
        let contents = in_parallel(files, threads, threads, |(number, stamp)| read(number, stamp), report)?;
        let (head, samples) = self.head(classes, config, contents)?;
        let index = Index::new(head, samples)?;
        index.keep(&self.places(), newest(&self.stamps));
        Ok(index)
    }

    /// The head of an index of the `contents` of each file, and their samples.
    pub(super) fn head(
        &self,
        classes: Option<Vec<String>>,
        config: &DataConfig,
        mut contents: Vec<FoundSamples>,
    ) -> Result<(Head, [Vec<Sample>; 2])> {
        let what = shown(self.store.path(""));
        let validation = FoundSamples::of(contents.split_off(self.training));
        let training = FoundSamples::of(contents);
        for (part, name) in [(&training, "training"), (&validation, "validation")] {
            if let Some(passed) = part.nothing_but() {
                return Err(Error::Data(format!("'{what}' has no images for {name}: {passed}")));
            }
        }
        let unnamed = classes.is_none().then(|| format!("the classes in '{what}' have no names, only numbers"));
        let notes = [unnamed, training.left_out(), validation.left_out()].into_iter().flatten().collect();
        let left_out = Some(training.faults() + validation.faults());
        let samples = [training.samples, validation.samples];
        let classes = classes.unwrap_or_else(|| numbered(&samples));
        classes::check(&classes, &what)?;
        Ok((Head { left_out, notes, ..Head::new(self.stamps.clone(), classes, config) }, samples))
    }
}

/// Where files are, and the names there of those for training and validation.
type Found = (Arc<dyn Store>, [Vec<String>; 2]);

impl Kind {
    /// Whether `source` is a pattern for such files or a folder with some.
    pub(super) fn are_in(self, source: &Path) -> Result<bool> {
        let pattern = source.to_string_lossy();
        let is_pattern = pattern.contains('{') && pattern.contains(self.suffix) && !source.exists();
        Ok(is_pattern || (source.is_dir() && !self.list(&Directory(source.to_path_buf()))?.0.is_empty()))
    }

    /// Where the files are, and the names there of those for training and validation.
    fn find(self, config: &DataConfig) -> Result<Found> {
        let dir = &config.dir;
        let pattern = dir.to_string_lossy();
        let (store, names) = match pattern.find('{').filter(|_| !dir.is_dir()) {
            Some(brace) => {
                let (root, rest) = pattern.split_at(pattern[..brace].rfind('/').map_or(0, |slash| slash + 1));
                let names =
                    braces::expand(rest).map_err(|fault| Error::usage(format!("data.dir '{pattern}' {fault}")))?;
                (store(Path::new(if root.is_empty() { "." } else { root }), config)?, names)
            }
            None => {
                let store = store(dir, config)?;
                let (names, compressed) = self.list(&*store)?;
                if let Some(name) = compressed.first() {
                    return Err(Error::Data(format!(
                        "'{}' is compressed; its samples are read at any position: decompress it, as in gunzip or unzstd",
                        shown(store.path(name))
                    )));
                }
                (store, names)
            }
        };
        let mut splits: [Vec<String>; 3] = Default::default();
        for name in names {
            let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
            let split = words.find_map(|word| SPLITS.iter().position(|known| known.contains(&word)));
            let unnamed = || Error::Data(format!("'{}' is of no split; {}", shown(store.path(&name)), self.layout()));
            splits[split.ok_or_else(unnamed)?].push(name);
        }
        let [training, mut validation, test] = splits;
        if validation.is_empty() {
            validation = test;
        }
        for (shards, words) in [(&training, "train"), (&validation, "val or test")] {
            if shards.is_empty() {
                return Err(Error::Data(format!("no shards of {words} in '{pattern}'; {}", self.layout())));
            }
        }
        Ok((store, [training, validation]))
    }

    fn layout(self) -> String {
        let Self { source, suffix } = self;
        format!(
            "--data {source} reads train*{suffix} and val*{suffix}, or train/*{suffix} and val/*{suffix}, below --data-dir"
        )
    }

    /// The sorted files at the root of a store and in its folders for splits, and compressed ones; without any, those
    /// in its folder `data`.
    fn list(self, store: &dyn Store) -> Result<(Vec<String>, Vec<String>)> {
        for root in ["", INNER] {
            let folders = SPLITS.concat().into_iter().map(|split| [root, split].join("/"));
            let mut found = Vec::new();
            for folder in std::iter::once(root.to_string()).chain(folders) {
                let folder = folder.trim_start_matches('/');
                let place = |name| if folder.is_empty() { name } else { format!("{folder}/{name}") };
                found.extend(store.names(folder)?.into_iter().map(place));
            }
            found.sort();
            let bare = |name: &str| COMPRESSED.iter().find_map(|end| name.strip_suffix(end)).map(String::from);
            let is_compressed = |name: &&String| {
                let is_tgz = self.suffix == TAR.suffix && name.ends_with(".tgz");
                is_tgz || bare(name).is_some_and(|bare| bare.ends_with(self.suffix))
            };
            let compressed: Vec<_> = found.iter().filter(is_compressed).cloned().collect();
            found.retain(|name| name.ends_with(self.suffix));
            if !found.is_empty() || !compressed.is_empty() {
                return Ok((found, compressed));
            }
        }
        Ok(Default::default())
    }
}

/// The store at `root`: a directory, or the URL of an object store.
fn store(root: &Path, config: &DataConfig) -> Result<Arc<dyn Store>> {
    if is_url(root) { remote(root, config) } else { Ok(Arc::new(Directory(root.to_path_buf()))) }
}

#[cfg(feature = "remote")]
fn remote(root: &Path, config: &DataConfig) -> Result<Arc<dyn Store>> {
    Ok(super::remote::Remote::open(root, config)?)
}

#[cfg(not(feature = "remote"))]
fn remote(root: &Path, _config: &DataConfig) -> Result<Arc<dyn Store>> {
    Err(Error::usage(format!("'{}' cannot be read by this build; build with --features remote", shown(root))))
}

/// Names of classes that have only numbers.
fn numbered(samples: &[Vec<Sample>; 2]) -> Vec<String> {
    let largest = samples.iter().flatten().map(|sample| sample.label).max();
    (0..=largest.unwrap_or(0)).map(|label| label.to_string()).collect()
}
