//! Images in tar shards, in the layout of WebDataset: `KEY.jpg` and `KEY.cls` one after the other.
//!
//! The names of the shards say which split they belong to. `KEY.cls` holds the number of the class, or its name if
//! `classes.txt` or `classnames.txt` lies beside the shards. An index makes every sample one positioned read, so the order
//! of samples is the sampler's, as for any other data.

use std::borrow::Cow;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Progress;
use super::braces;
use super::config::{Corrupt, DataConfig};
use super::decode::is_image;
use super::index::{Head, Index, Sample, Stamp};
use super::samples::{Samples, check_side, damaged, fault, in_parallel, left_out};
use super::tar::{Member, Members};
use crate::error::{Error, Result};
use crate::file;

/// The name of its index.
const SOURCE: &str = "webdataset";

/// Files with the names of the classes, one a line.
const CLASSES: [&str; 2] = ["classes.txt", "classnames.txt"];

/// The words that name a split; the first of validation's that there are is taken.
const SPLITS: [&[&str]; 3] = [&["train", "training"], &["val", "valid", "validation"], &["test"]];

/// Most bytes of a class in a shard.
const LONGEST: u64 = 256;

/// The largest class without a file of names.
const MOST_CLASSES: u32 = 1 << 20;

/// Images in tar files below `root`.
#[derive(Debug)]
pub(super) struct Shards {
    root: PathBuf,
    index: Index,
}

impl Shards {
    /// Finds the shards in `config.dir`, which may be a pattern such as `data/{train,val}-{000..127}.tar`.
    ///
    /// # Errors
    /// If a split is missing, or if a shard is not a whole tar file of pictures with classes.
    pub(super) fn open(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<Self> {
        check_side(config)?;
        let (root, [training, validation]) = find(&config.dir)?;
        let in_training = training.len();
        let listed = CLASSES.into_iter().find(|name| root.join(name).is_file());
        let names = training.into_iter().chain(validation).chain(listed.map(String::from));
        let files: Vec<Stamp> = names.map(|name| Stamp::of(&root, name)).collect::<Result<_>>()?;
        if let Some(index) = Index::kept(&root, SOURCE, &files, config.corrupt) {
            return Ok(Self { root, index });
        }
        let classes = listed.map(|name| class_names(&root.join(name))).transpose()?;
        let shards: Vec<(u32, &Stamp)> = (0..).zip(&files).take(files.len() - usize::from(listed.is_some())).collect();
        let what = root.display().to_string();
        let report = |done, total| progress(Progress::Files { what: what.clone(), done, total });
        let read = |(file, stamp): (u32, &Stamp)| {
            Shard { root: &root, stamp, classes: classes.as_deref() }.read(file, config.corrupt)
        };
        let contents = in_parallel(shards, rayon::current_num_threads(), read, report)?;
        let (mut samples, mut faults) = ([Vec::new(), Vec::new()], Vec::new());
        for (at, content) in contents.into_iter().enumerate() {
            samples[usize::from(at >= in_training)].extend(content.samples);
            faults.extend(content.faults);
        }
        let classes = classes.unwrap_or_else(|| numbered(&samples));
        let newest = files.iter().map(|file| file.modified).max().unwrap_or(u64::MAX);
        let notes = left_out(&faults).into_iter().collect();
        let head =
            Head { files, classes, corrupt: config.corrupt, exif: None, damaged: Vec::new(), notes, samples: [0; 2] };
        let index = Index::new(head, samples)?;
        index.keep(&root, SOURCE, newest);
        Ok(Self { root, index })
    }
}

impl Samples for Shards {
    fn index(&self) -> &Index {
        &self.index
    }

    /// The shard is opened each time: a set may have more shards than a process may have open files.
    fn bytes(&self, id: usize) -> Result<Cow<'_, [u8]>> {
        let path = self.root.join(self.index.file(id));
        let mut bytes = vec![0; self.index.length(id) as usize];
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut bytes, self.index.offset(id)));
        read.map_err(Error::io("read", &path))?;
        Ok(bytes.into())
    }

    fn place(&self, id: usize) -> String {
        place(self.index.name(id), self.index.offset(id), &self.root.join(self.index.file(id)))
    }
}

fn place(name: &[u8], offset: u64, shard: &Path) -> String {
    // A name may hold a line break.
    let name = String::from_utf8_lossy(name).escape_debug().to_string();
    format!("'{name}' at byte {offset} of '{}'", shard.display())
}

/// Whether `source` is a pattern for shards or a folder with some.
pub(super) fn are_in(source: &Path) -> Result<bool> {
    let is_pattern = source.to_string_lossy().contains('{') && !source.exists();
    Ok(is_pattern || (source.is_dir() && !list(source)?.is_empty()))
}

/// The folder of the shards, and the names below it of those for training and validation.
fn find(dir: &Path) -> Result<(PathBuf, [Vec<String>; 2])> {
    let pattern = dir.to_string_lossy();
    let (root, names) = match pattern.find('{').filter(|_| !dir.is_dir()) {
        Some(brace) => {
            let (root, rest) = pattern.split_at(pattern[..brace].rfind('/').map_or(0, |slash| slash + 1));
            let names = braces::expand(rest).map_err(|fault| Error::usage(format!("data.dir '{pattern}' {fault}")))?;
            (if root.is_empty() { PathBuf::from(".") } else { root.into() }, names)
        }
        None => (dir.to_path_buf(), list(dir)?),
    };
    let mut splits: [Vec<String>; 3] = Default::default();
    for name in names {
        let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
        let split = words.find_map(|word| SPLITS.iter().position(|known| known.contains(&word)));
        let unnamed = || Error::Data(format!("'{}' is of no split; {}", root.join(&name).display(), layout()));
        splits[split.ok_or_else(unnamed)?].push(name);
    }
    let [training, mut validation, test] = splits;
    if validation.is_empty() {
        validation = test;
    }
    for (shards, words) in [(&training, "train"), (&validation, "val or test")] {
        if shards.is_empty() {
            return Err(Error::Data(format!("no shards of {words} in '{pattern}'; {}", layout())));
        }
    }
    Ok((root, [training, validation]))
}

fn layout() -> &'static str {
    "--data webdataset reads train*.tar and val*.tar, or train/*.tar and val/*.tar, below --data-dir"
}

/// The sorted tar files in a folder, and in its folders for splits.
fn list(dir: &Path) -> Result<Vec<String>> {
    let of_split = |name: &str| SPLITS.iter().any(|words| words.contains(&name));
    let mut names = Vec::new();
    for name in entries(dir)? {
        if name.ends_with(".tar") {
            names.push(name);
        } else if of_split(&name) && dir.join(&name).is_dir() {
            let inner = entries(&dir.join(&name))?.into_iter().filter(|inner| inner.ends_with(".tar"));
            names.extend(inner.map(|inner| format!("{name}/{inner}")));
        }
    }
    names.sort();
    Ok(names)
}

/// The names in a folder.
fn entries(folder: &Path) -> Result<Vec<String>> {
    let listed = fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let listed = listed.map_err(Error::io("read", folder))?;
    Ok(listed.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// The lines of a file of class names.
fn class_names(path: &Path) -> Result<Vec<String>> {
    let text = file::text(path, file::TEXT).map_err(Error::io("read", path))?;
    Ok(text.lines().map(|line| line.trim().to_string()).collect())
}

/// Names of classes that have only numbers.
fn numbered(samples: &[Vec<Sample>; 2]) -> Vec<String> {
    let largest = samples.iter().flatten().map(|sample| sample.label).max();
    (0..=largest.unwrap_or(0)).map(|label| label.to_string()).collect()
}

/// A shard that is being read for the first time.
struct Shard<'a> {
    root: &'a Path,
    stamp: &'a Stamp,
    classes: Option<&'a [String]>,
}

/// What a shard holds.
#[derive(Default)]
struct Content {
    samples: Vec<Sample>,
    /// What is wrong with the images that are left out.
    faults: Vec<String>,
}

/// The members with one key.
#[derive(Default)]
struct Group {
    key: Vec<u8>,
    picture: Option<Member>,
    label: Option<u32>,
}

impl Shard<'_> {
    fn path(&self) -> PathBuf {
        self.root.join(&self.stamp.name)
    }

    fn refusal(&self, fault: &str) -> Error {
        Error::Data(format!("'{}' {fault}; fetch or write the shard again", self.path().display()))
    }

    /// Finds and checks all samples; `number` is the shard's in the index.
    fn read(&self, number: u32, corrupt: Corrupt) -> Result<Content> {
        let path = self.path();
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let (mut content, mut group) = (Content::default(), Group::default());
        for member in Members::of(&file, self.stamp.bytes) {
            let member = member.map_err(|fault| self.refusal(&fault))?;
            let Some((key, suffix)) = split_name(&member.name) else { continue };
            if key != group.key {
                self.close(&file, number, std::mem::take(&mut group), corrupt, &mut content)?;
                group.key = key.to_vec();
            }
            if suffix == "cls" {
                group.label = Some(self.label(&file, &member)?);
            } else if !suffix.contains('.') && is_image(&member.name) {
                if group.picture.is_some() {
                    let place = place(&member.name, member.offset, &path);
                    return Err(Error::Data(format!(
                        "{place} is the second picture of its key; give each a key of its own"
                    )));
                }
                group.picture = Some(member);
            }
        }
        self.close(&file, number, group, corrupt, &mut content)?;
        Ok(content)
    }

    /// Makes a sample of the members with one key; members that are neither picture nor class are no sample.
    fn close(&self, file: &File, number: u32, group: Group, corrupt: Corrupt, content: &mut Content) -> Result<()> {
        let key = || String::from_utf8_lossy(&group.key).escape_debug().to_string();
        let (Member { name, offset, length }, label) = match (group.picture, group.label) {
            (Some(picture), Some(label)) => (picture, label),
            (None, None) => return Ok(()),
            (Some(_), None) => return Err(self.refusal(&format!("has no '{0}.cls' beside the picture '{0}'", key()))),
            (None, Some(_)) => return Err(self.refusal(&format!("has no picture beside '{}.cls'", key()))),
        };
        let found = fault(file, offset, length, &name, corrupt).map_err(Error::io("read", self.path()))?;
        let found = found.map(|fault| format!("{} {fault}", place(&name, offset, &self.path())));
        match found {
            Some(fault) if corrupt == Corrupt::Skip => content.faults.push(fault),
            Some(fault) => return Err(damaged(&fault)),
            None => {
                let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
                content.samples.push(Sample { label, name, file: number, offset, length: length as u32 });
            }
        }
        Ok(())
    }

    /// The class that a member names.
    fn label(&self, file: &File, member: &Member) -> Result<u32> {
        let mut bytes = vec![0; member.length.min(LONGEST) as usize];
        file.read_exact_at(&mut bytes, member.offset).map_err(Error::io("read", self.path()))?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        let known = self.classes.and_then(|classes| classes.iter().position(|class| class == text));
        let label = known.map(|label| label as u32).or_else(|| text.parse().ok());
        let count = self.classes.map_or(MOST_CLASSES, |classes| classes.len() as u32);
        label.filter(|label| *label < count).ok_or_else(|| {
            let place = place(&member.name, member.offset, &self.path());
            let names = if self.classes.is_some() { ", or a name in the file of classes" } else { "" };
            let text = text.escape_debug();
            Error::Data(format!("{place} holds '{text}'; a class is a number from 0 to {}{names}", count - 1))
        })
    }
}

/// The key of a member and what follows it, in lower case: the name up to the first dot of its last part.
fn split_name(name: &[u8]) -> Option<(&[u8], String)> {
    let start = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = start + name[start..].iter().position(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    Some((&name[..dot], String::from_utf8_lossy(&name[dot + 1..]).to_ascii_lowercase()))
}
