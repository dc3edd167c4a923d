//! Files with many samples each: which there are, which split each belongs to, and an index of all of them.
//!
//! The name of a file says its split, as in `train-00000-of-00002.parquet` or `val/0001.tar`.

use std::fs;
use std::path::{Path, PathBuf};

use super::Progress;
use super::braces;
use super::config::DataConfig;
use super::content::Content;
use super::index::{Head, Index, Sample, Stamp};
use super::samples::in_parallel;
use crate::error::{Error, Result};

/// The words that name a split; the first of validation's that there are is taken.
const SPLITS: [&[&str]; 3] = [&["train", "training"], &["val", "valid", "validation"], &["test"]];

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

/// The files of a data set.
#[derive(Debug)]
pub(super) struct ShardFiles {
    kind: Kind,
    pub(super) root: PathBuf,
    /// The files for training, then those for validation, then others that the index depends on.
    stamps: Vec<Stamp>,
    training: usize,
    shards: usize,
}

impl ShardFiles {
    /// Those in `dir`, which may be a pattern such as `data/{train,val}-{000..127}.tar`, and the first of `others` that
    /// lies beside them.
    ///
    /// # Errors
    /// If a split is missing.
    pub(super) fn find(kind: Kind, dir: &Path, others: &[&str]) -> Result<Self> {
        let (root, [training, validation]) = kind.find(dir)?;
        let (in_training, shards) = (training.len(), training.len() + validation.len());
        let other = others.iter().find(|name| root.join(name).is_file()).map(|name| name.to_string());
        let names = training.into_iter().chain(validation).chain(other);
        let stamps = names.map(|name| Stamp::of(&root, name)).collect::<Result<_>>()?;
        Ok(Self { kind, root, stamps, training: in_training, shards })
    }

    /// The files with samples.
    pub(super) fn shards(&self) -> &[Stamp] {
        &self.stamps[..self.shards]
    }

    /// The path of the other file.
    pub(super) fn other(&self) -> Option<PathBuf> {
        self.stamps.get(self.shards).map(|stamp| self.root.join(&stamp.name))
    }

    /// The index that an earlier start kept, if no file has changed.
    pub(super) fn kept(&self, config: &DataConfig) -> Option<Index> {
        Index::kept(&self.root, self.kind.source, &self.stamps, config.corrupt)
    }

    /// An index of what `read` finds in each file. Classes without names are numbers.
    ///
    /// # Errors
    /// That of the first file that cannot be read.
    pub(super) fn index(
        &self,
        classes: Option<Vec<String>>,
        config: &DataConfig,
        progress: &dyn Fn(Progress),
        read: impl Fn(u32, &Stamp) -> Result<Content> + Sync,
    ) -> Result<Index> {
        let what = self.root.display().to_string();
        let report = |done, total| progress(Progress::Files { what: what.clone(), done, total });
        let files: Vec<(u32, &Stamp)> = (0..).zip(self.shards()).collect();
        let mut training =
            in_parallel(files, rayon::current_num_threads(), |(number, stamp)| read(number, stamp), report)?;
        let validation = Content::of(training.split_off(self.training));
        let training = Content::of(training);
        let unnamed = format!("the classes in '{}' have no names, only numbers", self.root.display());
        let unnamed = classes.is_none().then_some(unnamed);
        let notes = [unnamed, training.left_out(), validation.left_out()].into_iter().flatten().collect();
        let samples = [training.samples, validation.samples];
        let classes = classes.unwrap_or_else(|| numbered(&samples));
        let (corrupt, files) = (config.corrupt, self.stamps.clone());
        let head = Head { files, classes, corrupt, exif: None, damaged: Vec::new(), notes, samples: [0; 2] };
        let index = Index::new(head, samples)?;
        let newest = self.stamps.iter().map(|file| file.modified).max().unwrap_or(u64::MAX);
        index.keep(&self.root, self.kind.source, newest);
        Ok(index)
    }
}

impl Kind {
    /// Whether `source` is a pattern for such files or a folder with some.
    pub(super) fn are_in(self, source: &Path) -> Result<bool> {
        let pattern = source.to_string_lossy();
        let is_pattern = pattern.contains('{') && pattern.contains(self.suffix) && !source.exists();
        Ok(is_pattern || (source.is_dir() && !self.list(source)?.is_empty()))
    }

    /// The folder of the files, and the names below it of those for training and validation.
    fn find(self, dir: &Path) -> Result<(PathBuf, [Vec<String>; 2])> {
        let pattern = dir.to_string_lossy();
        let (root, names) = match pattern.find('{').filter(|_| !dir.is_dir()) {
            Some(brace) => {
                let (root, rest) = pattern.split_at(pattern[..brace].rfind('/').map_or(0, |slash| slash + 1));
                let names =
                    braces::expand(rest).map_err(|fault| Error::usage(format!("data.dir '{pattern}' {fault}")))?;
                (if root.is_empty() { PathBuf::from(".") } else { root.into() }, names)
            }
            None => (dir.to_path_buf(), self.list(dir)?),
        };
        let mut splits: [Vec<String>; 3] = Default::default();
        for name in names {
            let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
            let split = words.find_map(|word| SPLITS.iter().position(|known| known.contains(&word)));
            let unnamed = || Error::Data(format!("'{}' is of no split; {}", root.join(&name).display(), self.layout()));
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
        Ok((root, [training, validation]))
    }

    fn layout(self) -> String {
        let Self { source, suffix } = self;
        format!(
            "--data {source} reads train*{suffix} and val*{suffix}, or train/*{suffix} and val/*{suffix}, below --data-dir"
        )
    }

    /// The sorted files in a folder, and in its folders for splits.
    fn list(self, dir: &Path) -> Result<Vec<String>> {
        let of_split = |name: &str| SPLITS.iter().any(|words| words.contains(&name));
        let mut names = Vec::new();
        for name in entries(dir)? {
            if name.ends_with(self.suffix) {
                names.push(name);
            } else if of_split(&name) && dir.join(&name).is_dir() {
                let inner = entries(&dir.join(&name))?.into_iter().filter(|inner| inner.ends_with(self.suffix));
                names.extend(inner.map(|inner| format!("{name}/{inner}")));
            }
        }
        names.sort();
        Ok(names)
    }
}

/// The names in a folder.
fn entries(folder: &Path) -> Result<Vec<String>> {
    let listed = fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let listed = listed.map_err(Error::io("read", folder))?;
    Ok(listed.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Names of classes that have only numbers.
fn numbered(samples: &[Vec<Sample>; 2]) -> Vec<String> {
    let largest = samples.iter().flatten().map(|sample| sample.label).max();
    (0..=largest.unwrap_or(0)).map(|label| label.to_string()).collect()
}
