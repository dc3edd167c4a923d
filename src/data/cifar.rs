//! CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in all published formats.
//!
//! The binary version consists of records (label bytes, then 3072 bytes of red, green and blue planes), the python
//! version is a pickle of the same numbers; both are read from a folder or directly from the `.tar.gz`.
//! `kiln_objects::fetch` fetches, `members` unpacks, `pickle` runs pickles; this file knows the file names and checks
//! the contents. The data set's home publishes MD5, which detects damage but not an attack.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_objects::fetch::{self, Published};
use kiln_system::{Error, Result, shown};
use md5::Md5;

use super::config::DataConfig;
use super::dataset::{CHANNELS, ImageSet};
use super::normalization::Normalization;
use super::pickle::{Id, Pickle, Value};
use super::{Progress, members};

/// The data set's home; the environment variable `KILN_CIFAR_MIRROR` overrides it.
const HOME: &str = "https://www.cs.toronto.edu/~kriz";

/// Most bytes of an archive; the largest has 170 million.
const LIMIT: u64 = 200 << 20;

/// The latest protocol of pickles.
const LATEST: u8 = 5;

const SIDE: usize = 32;
const IMAGE: usize = CHANNELS * SIDE * SIDE;

/// One of the two data sets: file names and the layout of a record.
#[derive(Debug)]
pub struct Layout {
    title: &'static str,
    option: &'static str,
    binary: Format,
    python: Format,
    /// MD5 of the binary version's archive, in hexadecimal.
    md5: &'static str,
    /// Bytes of labels before the pixels of a record; the last of them is the class.
    label_bytes: usize,
    /// The pickle's entry with the classes.
    labels: &'static str,
    class_file: &'static str,
    class_names: &'static [&'static str],
    classes: usize,
    normalization: Normalization,
}

#[derive(Debug)]
struct Format {
    folder: &'static str,
    archive: &'static str,
    /// The first file is required, the others are read if they exist.
    train: &'static [&'static str],
    test: &'static str,
}

pub const CIFAR10: Layout = Layout {
    title: "CIFAR-10",
    option: "cifar10",
    binary: Format {
        folder: "cifar-10-batches-bin",
        archive: "cifar-10-binary.tar.gz",
        train: &["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"],
        test: "test_batch.bin",
    },
    python: Format {
        folder: "cifar-10-batches-py",
        archive: "cifar-10-python.tar.gz",
        train: &["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"],
        test: "test_batch",
    },
    md5: "c32a1d4ab5d03f1284b67883e8d87530",
    label_bytes: 1,
    labels: "labels",
    class_file: "batches.meta.txt",
    class_names: &["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    classes: 10,
    normalization: Normalization::CIFAR10,
};

pub const CIFAR100: Layout = Layout {
    title: "CIFAR-100",
    option: "cifar100",
    binary: Format {
        folder: "cifar-100-binary",
        archive: "cifar-100-binary.tar.gz",
        train: &["train.bin"],
        test: "test.bin",
    },
    python: Format { folder: "cifar-100-python", archive: "cifar-100-python.tar.gz", train: &["train"], test: "test" },
    md5: "03b5dce01913d631647c71ecec9e9cb8",
    label_bytes: 2,
    labels: "fine_labels",
    class_file: "fine_label_names.txt",
    class_names: &[],
    classes: 100,
    normalization: Normalization::CIFAR100,
};

struct Location<'a> {
    path: PathBuf,
    format: &'a Format,
    archived: bool,
}

/// Reads both splits from `config.dir`; with `config.download`, first fetches the archive if it is missing.
///
/// A folder or archive with the published name is preferred to loose files in `config.dir`.
///
/// # Errors
/// [`Error::Data`] if the data set is missing, incomplete or damaged; the errors of [`ensure`].
pub(super) fn load(
    layout: &Layout,
    config: &DataConfig,
    progress: &dyn Fn(Progress),
) -> Result<([ImageSet; 2], Normalization)> {
    if config.download && layout.needs_fetching(&config.dir) {
        let base = base_url(std::env::var("KILN_CIFAR_MIRROR").ok());
        ensure(layout.binary.archive, layout.md5, &config.dir, &base, progress)?;
    }
    let place = layout.locate(&config.dir).ok_or_else(|| layout.missing(&config.dir))?;
    let Format { train, test, .. } = *place.format;
    let wanted = [train, &[test, layout.class_file]].concat();
    let mut files = members::read(&place.path, place.archived, &wanted)?;
    let classes = layout.class_names(files.remove(layout.class_file));
    let train = layout.read(&place, &mut files, train, &classes)?;
    let validation = layout.read(&place, &mut files, &[test], &classes)?;
    Ok(([train, validation], layout.normalization))
}

/// The base URL of the archives: `mirror` (the value of `KILN_CIFAR_MIRROR`) unless it is absent or empty.
pub fn base_url(mirror: Option<String>) -> String {
    let url = mirror.filter(|url| !url.is_empty()).unwrap_or_else(|| HOME.to_owned());
    url.trim_end_matches('/').to_owned()
}

/// Ensures that `dir` holds `archive` with this MD5 in hexadecimal; otherwise fetches it from `base`.
///
/// # Errors
/// If the server cannot be reached, ends too early or sends other content, or if `dir` cannot be written. An existing
/// file is then left unchanged.
pub fn ensure(archive: &str, md5: &str, dir: &Path, base: &str, progress: &dyn Fn(Progress)) -> Result<PathBuf> {
    let file = Published {
        name: archive.into(),
        url: format!("{base}/{archive}"),
        hash: "MD5",
        checksum: md5.into(),
        limit: LIMIT,
        remedy: format!("put '{archive}' into '{}' by hand (--data-dir)", shown(dir)),
    };
    let tell = |done, total| progress(Progress::Bytes { what: archive.into(), done, total });
    fetch::ensure::<Md5>(&file, dir, &tell)
}

impl Layout {
    fn locate<'a>(&'a self, dir: &Path) -> Option<Location<'a>> {
        let place = |path: PathBuf, format, archived| Location { path, format, archived };
        let formats = [&self.binary, &self.python];
        let folders = formats.map(|format| place(dir.join(format.folder), format, false));
        let archives = formats.map(|format| place(dir.join(format.archive), format, true));
        let loose = formats.map(|format| place(dir.to_path_buf(), format, false));
        folders.into_iter().chain(archives).chain(loose).find(Location::exists)
    }

    /// Whether `--download` must fetch or verify: only a part of the data set is there, such as the sample in `data/`,
    /// or there is an archive, whose checksum is not verified yet.
    fn needs_fetching(&self, dir: &Path) -> bool {
        self.locate(dir).is_none_or(|place| match place.archived {
            true => place.format.archive == self.binary.archive,
            false => !place.format.train.iter().all(|name| place.path.join(name).is_file()),
        })
    }

    fn missing(&self, dir: &Path) -> Error {
        let Self { title, option, binary, .. } = self;
        Error::Data(format!(
            "no {title} in '{}' (looked for '{}', '{}' and their python versions); fetch it with --data {option} --download, \
             name its folder with --data-dir DIR, or train without files: train experiment=quickstart",
            shown(dir),
            binary.folder,
            binary.archive,
        ))
    }

    fn read(
        &self,
        place: &Location,
        files: &mut BTreeMap<String, Vec<u8>>,
        names: &[&str],
        classes: &[String],
    ) -> Result<ImageSet> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for (index, name) in names.iter().enumerate() {
            let path = shown(place.path.join(name));
            match files.remove(*name) {
                Some(content) if std::ptr::eq(place.format, &self.python) => {
                    self.unpickle(&content, &path, &mut pixels, &mut labels)?
                }
                Some(content) => self.decode(&content, &path, &mut pixels, &mut labels)?,
                None if index == 0 => return Err(self.damaged(&path, "is missing")),
                None => {}
            }
        }
        ImageSet::new(pixels, labels, classes.to_vec(), [SIDE, SIDE])
    }

    fn decode(&self, content: &[u8], path: &str, pixels: &mut Vec<u8>, labels: &mut Vec<u32>) -> Result<()> {
        let record = self.label_bytes + IMAGE;
        if content.is_empty() || !content.len().is_multiple_of(record) {
            let size = content.len();
            let rule = format!("is {size} bytes; a {} file is a multiple of {record} bytes and not empty", self.title);
            return Err(self.damaged(path, &rule));
        }
        pixels.reserve(content.len());
        for (index, record) in content.chunks_exact(record).enumerate() {
            let (label, image) = record.split_at(self.label_bytes);
            labels.push(self.label(label[self.label_bytes - 1].into(), path, index)?);
            pixels.extend_from_slice(image);
        }
        Ok(())
    }

    fn unpickle(&self, content: &[u8], path: &str, pixels: &mut Vec<u8>, labels: &mut Vec<u32>) -> Result<()> {
        let (data, classes) = batch(content, self.labels)
            .map_err(|reason| self.damaged(path, &format!("is not a {} pickle: {reason}", self.title)))?;
        if classes.is_empty() || data.len() != classes.len() * IMAGE {
            let rule = format!("holds {} labels and {} bytes; it takes {IMAGE} bytes each", classes.len(), data.len());
            return Err(self.damaged(path, &rule));
        }
        for (index, label) in classes.into_iter().enumerate() {
            labels.push(self.label(label, path, index)?);
        }
        pixels.extend_from_slice(&data);
        Ok(())
    }

    fn label(&self, label: i64, path: &str, index: usize) -> Result<u32> {
        let found = u32::try_from(label).ok().filter(|&label| (label as usize) < self.classes);
        found.ok_or_else(|| {
            let last = self.classes - 1;
            let rule = format!("has label '{label}' in record {index} (from 0); {} labels are 0..={last}", self.title);
            self.damaged(path, &rule)
        })
    }

    fn damaged(&self, path: &str, complaint: &str) -> Error {
        Error::Data(format!("'{path}' {complaint}; restore it, or fetch the data set again with --download"))
    }

    /// The names in `file`, one per line, if there is one per class; else the published names, else numbers.
    fn class_names(&self, file: Option<Vec<u8>>) -> Vec<String> {
        let text = file.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let named: Vec<String> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect();
        match () {
            () if named.len() == self.classes => named,
            () if self.class_names.len() == self.classes => self.class_names.iter().map(ToString::to_string).collect(),
            () => (0..self.classes).map(|label| label.to_string()).collect(),
        }
    }
}

impl Location<'_> {
    /// Whether any part of the data set is there. An incomplete folder counts, so that an error can name the missing
    /// file.
    fn exists(&self) -> bool {
        match self.archived {
            true => self.path.is_file(),
            false => [self.format.train[0], self.format.test].iter().any(|name| self.path.join(name).is_file()),
        }
    }
}

/// The array `data` and the list `labels` of a pickled dictionary, or a reason that completes "... is not a CIFAR
/// pickle: ".
fn batch<'a>(bytes: &'a [u8], labels: &str) -> std::result::Result<(Cow<'a, [u8]>, Vec<i64>), String> {
    let pickle = Pickle::read(bytes, LATEST)?;
    let Value::Dict(_) = pickle.values[pickle.root] else { return Err("it holds no dictionary".into()) };
    let entry = |name| pickle.entry(pickle.root, name).ok_or_else(|| format!("it has no entry '{name}'"));
    let data = array(&pickle, entry("data")?).ok_or("its 'data' is not a numpy array of bytes in rows")?;
    let classes = match &pickle.values[entry(labels)?] {
        Value::List(items) => integers(&pickle, items),
        _ => None,
    };
    Ok((data, classes.ok_or_else(|| format!("its '{labels}' is not a list of integers"))?))
}

/// The bytes of a numpy array in C order with one byte per element.
fn array<'a>(pickle: &Pickle<'a>, id: Id) -> Option<Cow<'a, [u8]>> {
    let Value::Tuple(state) = &pickle.values[*pickle.states.get(&id)?] else { return None };
    let [_version, shape, _dtype, is_fortran, bytes] = <[Id; 5]>::try_from(&state[..]).ok()?;
    let (Value::Tuple(shape), Value::Bool(false)) = (&pickle.values[shape], &pickle.values[is_fortran]) else {
        return None;
    };
    let bytes = match pickle.values[bytes] {
        Value::Bytes(bytes) => Cow::Borrowed(bytes),
        // As Python 3 writes bytes in protocol 2.
        Value::Text(text) => text.chars().map(|letter| u8::try_from(letter).ok()).collect::<Option<_>>()?,
        _ => return None,
    };
    let elements = integers(pickle, shape)?.into_iter().try_fold(1_i64, i64::checked_mul)?;
    (usize::try_from(elements) == Ok(bytes.len())).then_some(bytes)
}

fn integers(pickle: &Pickle, ids: &[Id]) -> Option<Vec<i64>> {
    ids.iter().map(|id| if let Value::Int(number) = pickle.values[*id] { Some(number) } else { None }).collect()
}
