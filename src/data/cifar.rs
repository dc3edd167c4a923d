//! CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in all published formats.
//!
//! The binary version consists of records (label bytes, then 3072 bytes of red, green and blue planes), the python
//! version is a pickle of the same numbers; both are read from a folder or directly from the `.tar.gz`. `download`
//! fetches, `members` unpacks, `pickle` reads pickles; this file knows the file names and checks the contents.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_system::{Error, Result, shown};

use super::config::DataConfig;
use super::dataset::{CHANNELS, DataSplits, ImageSet};
use super::download::{self, Archive};
use super::members::Members;
use super::normalization::Normalization;
use super::{Progress, pickle};

const SIDE: usize = 32;
const IMAGE: usize = CHANNELS * SIDE * SIDE;

/// One of the two data sets: file names and the layout of a record.
#[derive(Debug)]
pub struct Layout {
    title: &'static str,
    option: &'static str,
    binary: Format,
    python: Format,
    archive: Archive,
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
    archive: Archive { name: "cifar-10-binary.tar.gz", md5: "c32a1d4ab5d03f1284b67883e8d87530" },
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
    archive: Archive { name: "cifar-100-binary.tar.gz", md5: "03b5dce01913d631647c71ecec9e9cb8" },
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
/// [`Error::Data`] if the data set is missing, incomplete or damaged; the errors of [`download::ensure`].
pub fn load(layout: &Layout, config: &DataConfig, progress: &dyn Fn(Progress)) -> Result<DataSplits> {
    if config.download && layout.needs_fetching(&config.dir) {
        let base = download::base_url(std::env::var("KILN_CIFAR_MIRROR").ok());
        download::ensure(&layout.archive, &config.dir, &base, progress)?;
    }
    let place = layout.locate(&config.dir).ok_or_else(|| layout.missing(&config.dir))?;
    let wanted = place.format.train.iter().copied().chain([place.format.test, layout.class_file]);
    let mut members = match place.archived {
        true => Members::of_archive(&place.path, wanted)?,
        false => Members::of_folder(&place.path, wanted)?,
    };
    let classes = layout.class_names(members.take(layout.class_file));
    let train = layout.read(&mut members, place.format, place.format.train, &classes)?;
    let validation = layout.read(&mut members, place.format, &[place.format.test], &classes)?;
    Ok(DataSplits {
        train: Arc::new(train),
        validation: Arc::new(validation),
        normalization: layout.normalization,
        small_side: None,
        left_out: 0,
        notes: Vec::new(),
    })
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
            true => place.format.archive == self.archive.name,
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

    fn read(&self, members: &mut Members, format: &Format, names: &[&str], classes: &[String]) -> Result<ImageSet> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for (index, name) in names.iter().enumerate() {
            match members.take(name) {
                Some(content) if std::ptr::eq(format, &self.python) => {
                    self.unpickle(&content, &members.path(name), &mut pixels, &mut labels)?
                }
                Some(content) => self.decode(&content, &members.path(name), &mut pixels, &mut labels)?,
                None if index == 0 => return Err(self.damaged(&members.path(name), "is missing")),
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
        let (data, classes) = pickle::batch(content, self.labels)
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
