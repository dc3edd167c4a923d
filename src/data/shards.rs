//! Images in tar shards, in the layout of WebDataset: `KEY.jpg` and `KEY.cls` one after the other.
//!
//! The names of the shards say which split they belong to. `KEY.cls` holds the number of the class, or its name if
//! `classes.txt` or `classnames.txt` lies beside the shards. An index makes every sample one positioned read, so the
//! order of samples is the sampler's, as for any other data.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_system::file::TEXT;
use kiln_system::{Error, Result, shown};

use super::Progress;
use super::classes;
use super::config::{Corrupt, DataConfig};
use super::decode::is_image;
use super::found_samples::FoundSamples;
use super::index::{Index, Sample, Stamp};
use super::samples::{Samples, check_side, fault};
use super::shard_files::{MOST_CLASSES, ShardFiles, TAR};
use super::store::{ReadAt, Store};
use super::tar::{Member, Members};

/// Files with the names of the classes, one a line.
const CLASSES: [&str; 2] = ["classes.txt", "classnames.txt"];

/// Most bytes of a class in a shard.
const LONGEST: u64 = 256;

#[derive(Debug)]
pub(super) struct Shards {
    pub(super) store: Arc<dyn Store>,
    index: Index,
}

impl Shards {
    /// Finds the shards in `config.dir`, which may be a pattern such as `data/{train,val}-{000..127}.tar`.
    pub(super) fn open(config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<Self> {
        check_side(config)?;
        let files = ShardFiles::find(TAR, config, &CLASSES)?;
        if let Some(index) = files.kept(config) {
            return Ok(Self { store: files.store, index });
        }
        let classes = files.other().map(|stamp| class_names(&*files.store, stamp)).transpose()?;
        let known = classes.clone();
        let read = |number, stamp: &Stamp| {
            Shard { store: &*files.store, stamp, classes: known.as_deref() }.read(number, config.corrupt)
        };
        let index = files.index(classes, config, progress, read)?;
        Ok(Self { store: files.store, index })
    }
}

impl Samples for Shards {
    fn index(&self) -> &Index {
        &self.index
    }

    /// The shard is opened each time: a set may have more shards than a process may have open files.
    fn bytes(&self, id: usize) -> Result<Cow<'_, [u8]>> {
        let name = self.index.file(id);
        let bytes = self.store.read(name, self.index.range(id)).map_err(Error::io("read", self.store.path(name)))?;
        Ok(bytes.into())
    }

    fn place(&self, id: usize) -> String {
        place(&self.index.name(id), self.index.offset(id), &self.store.path(self.index.file(id)))
    }
}

fn place(name: &[u8], offset: u64, shard: &std::path::Path) -> String {
    // A name may hold a line break.
    let name = String::from_utf8_lossy(name).escape_debug().to_string();
    format!("'{name}' at byte {offset} of '{}'", shown(shard))
}

/// Why a member is part of no sample.
fn passed(member: &Member, shard: &std::path::Path, why: &str) -> String {
    format!("{} is passed over; {why}", place(&member.name, member.offset, shard))
}

fn class_names(store: &dyn Store, stamp: &Stamp) -> Result<Vec<String>> {
    let path = store.path(&stamp.name);
    if stamp.bytes > TEXT {
        return Err(Error::Data(format!("'{}' has {} bytes; at most {TEXT} are read", shown(&path), stamp.bytes)));
    }
    let text = store.read(&stamp.name, 0..stamp.bytes).map_err(Error::io("read", &path))?;
    let text = String::from_utf8(text);
    let text = text.map_err(|_| Error::Data(format!("'{}' is not a text in UTF-8", shown(&path))))?;
    let names: Vec<String> = text.trim_end().lines().map(|line| line.trim().to_string()).collect();
    if let Some(at) = names.iter().position(String::is_empty) {
        let rule = "so it is not clear which classes the numbers below it are";
        let (line, place) = (at + 1, shown(&path));
        return Err(Error::Data(format!(
            "line {line} of '{place}' is empty, {rule}; remove the line, or name its class"
        )));
    }
    Ok(names)
}

struct Shard<'a> {
    store: &'a dyn Store,
    stamp: &'a Stamp,
    classes: Option<&'a [String]>,
}

#[derive(Default)]
struct Group {
    key: Vec<u8>,
    /// And what is wrong with it.
    picture: Option<(Member, Option<String>)>,
    label: Option<u32>,
}

impl Shard<'_> {
    fn path(&self) -> PathBuf {
        self.store.path(&self.stamp.name)
    }

    fn refusal(&self, fault: &str) -> Error {
        Error::Data(format!("'{}' {fault}; fetch or write the shard again", shown(self.path())))
    }

    /// Finds and checks all samples; `number` is the shard's in the index.
    fn read(&self, number: u32, corrupt: Corrupt) -> Result<FoundSamples> {
        let path = self.path();
        let file = self.store.open(&self.stamp.name).map_err(Error::io("open", &path))?;
        let file = &*file;
        let (mut content, mut group) = (FoundSamples::default(), Group::default());
        let mut members = Members::of(file, self.stamp.bytes);
        while let Some(member) = members.advance().map_err(|fault| self.refusal(&fault))? {
            let Some((key, suffix)) = split_name(&member.name) else {
                content.pass(|| passed(&member, &path, "its name has no key and suffix, as KEY.jpg has"));
                continue;
            };
            if key != group.key {
                self.close(number, std::mem::take(&mut group), corrupt, &mut content)?;
                group.key = key.to_vec();
            }
            if suffix == "cls" {
                group.label = Some(self.label(file, &member)?);
            } else if !suffix.contains('.') && is_image(&member.name) {
                if group.picture.is_some() {
                    let place = place(&member.name, member.offset, &path);
                    return Err(Error::Data(format!(
                        "{place} is the second picture of its key; give each a key of its own"
                    )));
                }
                let found = self.inspect(file, &member, corrupt)?;
                group.picture = Some((member, found));
            } else {
                let rule = match suffix.rsplit('.').next() {
                    Some(last) if last != suffix && (last == "cls" || is_image(&member.name)) => {
                        "a key ends at the first dot of its name, as in WebDataset: write keys without dots"
                    }
                    _ => "it is neither a picture (KEY.jpg, .jpeg, .png, .bmp or .webp) nor a class (KEY.cls)",
                };
                content.pass(|| passed(&member, &path, rule));
            }
        }
        self.close(number, group, corrupt, &mut content)?;
        Ok(content)
    }

    /// Looks for damage, before the walk goes on, so that reads go forward only. Returns a sentence about it.
    fn inspect(&self, file: &dyn ReadAt, picture: &Member, corrupt: Corrupt) -> Result<Option<String>> {
        let Member { name, offset, length } = picture;
        let content_at = |out: &mut [u8], at| file.read_exact_at(out, offset + at);
        let found = fault(content_at, *length, name, corrupt).map_err(Error::io("read", self.path()))?;
        Ok(found.map(|fault| format!("{} {fault}", place(name, *offset, &self.path()))))
    }

    /// Makes a sample of the members with one key; members that are neither picture nor class are no sample.
    fn close(&self, number: u32, group: Group, corrupt: Corrupt, content: &mut FoundSamples) -> Result<()> {
        let key = || String::from_utf8_lossy(&group.key).escape_debug().to_string();
        let ((Member { name, offset, length }, found), label) = match (group.picture, group.label) {
            (Some(picture), Some(label)) => (picture, label),
            (None, None) => return Ok(()),
            (Some(_), None) => return Err(self.refusal(&format!("has no '{0}.cls' beside the picture '{0}'", key()))),
            (None, Some(_)) => return Err(self.refusal(&format!("has no picture beside '{}.cls'", key()))),
        };
        let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        content.take(Sample { label, name, file: number, offset, length: length as u32 }, found, corrupt)
    }

    fn label(&self, file: &dyn ReadAt, member: &Member) -> Result<u32> {
        let mut bytes = vec![0; member.length.min(LONGEST) as usize];
        file.read_exact_at(&mut bytes, member.offset).map_err(Error::io("read", self.path()))?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        let known = self.classes.and_then(|classes| classes.iter().position(|class| classes::is_same(class, text)));
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
