//! A pack: all images of both splits in one file, read from a mapping without copies.
//!
//! Images lie one after the other, each followed by its CRC-32, and the index of the file comes last. They are the
//! bytes of the source, so that a run may go on with the pack, or are shrunk and encoded anew, some of them as JPEGs
//! and the others as plain pixels, which need no decoding (as in FFCV, Leclerc et al. 2023).

use std::borrow::Cow;
use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use image::imageops::{FilterType, resize};
use kiln_system::file;
use kiln_system::{Error, Result, shown};
use rayon::prelude::*;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tempfile::NamedTempFile;

use super::Progress;
use super::config::{Corrupt, DataConfig, Exif};
use super::decode::{decode, to_raw};
use super::index::{Head, Index, Sample, encode};
use super::sample_key::mix;
use super::samples::{REPORT_EVERY, Samples, check_side, decoded};

/// Quality of new JPEGs, 1 to 100.
const QUALITY: u8 = 90;

/// How images are encoded anew.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// The longer side is at most this many pixels; `None` keeps the size.
    pub side: Option<u32>,
    /// How to treat the orientations stored with the images.
    pub exif: Exif,
    /// The share of images that become JPEGs, 0 to 1; the others become plain pixels.
    pub jpeg: f64,
}

#[derive(Debug)]
pub(super) struct Pack {
    pub(super) path: PathBuf,
    pub(super) index: Index,
    /// Where the files are that it was made from, if only that is of interest.
    pub(super) origin: Option<PathBuf>,
}

impl Pack {
    /// Opens the pack `config.dir`.
    pub(super) fn open(config: &DataConfig) -> Result<Self> {
        check_side(config)?;
        let path = config.dir.clone();
        let bytes = file::map(&path, u64::MAX).map_err(Error::io("read", &path))?;
        let index = Index::of(bytes).ok_or_else(|| {
            let name = shown(&path);
            Error::Data(format!(
                "'{name}' is not a whole pack of this version; write one with train pack SOURCE --output FILE"
            ))
        })?;
        match index.head.exif {
            Some(exif) if exif != config.exif => {
                let (name, how) = (shown(&path), if exif == Exif::Apply { "without" } else { "with" });
                Err(Error::usage(format!(
                    "'{name}' was encoded with data.exif={exif}, but data.exif is '{}'; give data.exif={exif}, or \
                     write the pack again {how} --apply-exif",
                    config.exif
                )))
            }
            _ => Ok(Self { path, index, origin: None }),
        }
    }
}

impl Samples for Pack {
    fn index(&self) -> &Index {
        &self.index
    }

    fn bytes(&self, id: usize) -> Result<Cow<'_, [u8]>> {
        let (bytes, sum) = self.index.content(id).ok_or_else(|| self.damaged(id))?;
        if crc32fast::hash(bytes).to_le_bytes() == sum { Ok(bytes.into()) } else { Err(self.damaged(id)) }
    }

    fn place(&self, id: usize) -> String {
        let name = String::from_utf8_lossy(&self.index.name(id)).escape_debug().to_string();
        match &self.origin {
            Some(root) => format!("'{name}' in '{}'", shown(root.join(self.index.file(id)))),
            None => format!("'{name}' at byte {} of '{}'", self.index.offset(id), shown(&self.path)),
        }
    }
}

impl Pack {
    fn damaged(&self, id: usize) -> Error {
        let remedy = match self.origin {
            Some(_) => format!(" in '{}'; remove that file, and it is written again", shown(&self.path)),
            None => "; write the pack again with train pack".into(),
        };
        Error::Data(format!("{} does not have its checksum{remedy}", self.place(id)))
    }
}

/// A pack that is being written under a temporary name next to its final one.
pub(super) struct Writer<'a> {
    file: BufWriter<NamedTempFile>,
    output: &'a Path,
    at: u64,
}

impl<'a> Writer<'a> {
    /// One in the folder of `output`.
    pub(super) fn new(output: &'a Path, bytes: u64) -> Result<Self> {
        let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (beside, shared) = (beside(output), Permissions::from_mode(0o666));
        let file = tempfile::Builder::new().prefix(&beside).permissions(shared).tempfile_in(folder);
        let file = file.map_err(Error::io("write", output))?;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Err(reason @ (Errno::NOSPC | Errno::DQUOT)) => Err(Error::io("write", output)(reason.into())),
            // Not every file system can, and none must.
            _ => Ok(Self { file: BufWriter::new(file), output, at: 0 }),
        }
    }

    /// Appends an image and returns where it begins.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let sum = crc32fast::hash(bytes).to_le_bytes();
        let written = self.file.write_all(bytes).and_then(|()| self.file.write_all(&sum));
        written.map_err(Error::io("write", self.output))?;
        self.at += bytes.len() as u64 + 4;
        Ok(self.at - bytes.len() as u64 - 4)
    }

    /// The complete file, which is not yet `output`, and its bytes.
    pub(super) fn finish(mut self, head: Head, samples: [Vec<Sample>; 2]) -> Result<(NamedTempFile, u64)> {
        let (end, failed) = (encode(head, samples, self.at)?, || Error::io("write", self.output));
        self.file.write_all(&end).map_err(failed())?;
        let file = self.file.into_inner().map_err(|error| failed()(error.into_error()))?;
        let bytes = self.at + end.len() as u64;
        file.as_file().set_len(bytes).map_err(failed())?;
        Ok((file, bytes))
    }
}

/// How the names of files begin that are to be `output`.
pub(super) fn beside(output: &Path) -> String {
    format!(".{}.", output.file_name().unwrap_or_default().display())
}

/// Lets a complete pack appear; returns its bytes.
pub(super) fn appear((file, bytes): (NamedTempFile, u64), output: &Path) -> Result<u64> {
    let named = file.as_file().sync_all().and_then(|()| Ok(file.persist(output)?));
    named.map_err(Error::io("write", output)).map(|_| bytes)
}

/// The head of a pack that stands for itself, whatever it was made from.
pub(super) fn alone(head: Head) -> Head {
    Head { files: Vec::new(), damaged: Vec::new(), corrupt: Corrupt::Refuse, ..head }
}

/// Why there is no pack of the images in `config.dir`.
pub(super) fn nothing(config: &DataConfig, notes: &[String]) -> Error {
    let why = notes.first().map(|note| format!(": {note}")).unwrap_or_default();
    Error::Data(format!("'{}' has no image to pack{why}", shown(&config.dir)))
}

/// Writes a pack of `samples` to `output`, which appears when it is complete; returns its bytes.
pub(super) fn write(
    samples: &dyn Samples,
    recipe: Option<Recipe>,
    output: &Path,
    progress: &dyn Fn(Progress),
) -> Result<u64> {
    let (mut writer, index) = (Writer::new(output, 0)?, samples.index());
    let mut rows = [Vec::new(), Vec::new()];
    for (ids, rows) in index.splits().into_iter().zip(&mut rows) {
        for part in parts(ids) {
            let encoded: Vec<Result<Cow<[u8]>>> =
                part.clone().into_par_iter().map(|id| encoded(samples, id, recipe)).collect();
            for (id, bytes) in part.clone().zip(encoded) {
                let (bytes, name) = (bytes?, index.name(id));
                let (offset, length) = (writer.append(&bytes)?, bytes.len() as u32);
                rows.push(Sample { label: index.label(id), name, file: 0, offset, length });
            }
            progress(Progress::Files { what: "images".into(), done: part.end, total: index.len() });
        }
    }
    let exif = recipe.map(|recipe| recipe.exif).or(index.head.exif);
    appear(writer.finish(Head { exif, ..alone(index.head.clone()) }, rows)?, output)
}

fn parts(ids: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = ids.end;
    ids.step_by(REPORT_EVERY).map(move |start| start..end.min(start + REPORT_EVERY))
}

fn encoded(samples: &dyn Samples, id: usize, recipe: Option<Recipe>) -> Result<Cow<'_, [u8]>> {
    let Some(Recipe { side, exif, jpeg }) = recipe else { return samples.bytes(id) };
    let image = decoded(samples, id, |bytes, name| decode(bytes, name, exif))?;
    let image = shrunk(image, side.unwrap_or(u32::MAX));
    if (mix(id as u64) >> 11) as f64 * (-53_f64).exp2() >= jpeg {
        return Ok(to_raw(&image).into());
    }
    let mut bytes = Vec::new();
    let written = JpegEncoder::new_with_quality(&mut bytes, QUALITY).encode_image(&image);
    written.map_err(|reason| Error::Data(format!("{} cannot be a JPEG: {reason}", samples.place(id))))?;
    Ok(bytes.into())
}

/// The image with its longer side at most `side` pixels.
fn shrunk(image: RgbImage, side: u32) -> RgbImage {
    let (width, height) = image.dimensions();
    let longer = width.max(height);
    if longer <= side {
        return image;
    }
    let scaled = |length: u32| ((f64::from(length) * f64::from(side) / f64::from(longer)).round() as u32).max(1);
    resize(&image, scaled(width), scaled(height), FilterType::Triangle)
}
