//! A pack: all images of both splits in one file, read from a mapping without copies.
//!
//! Images lie one after the other, each followed by its CRC-32, and the index of the file comes last. They are the bytes of
//! the source, so that a run may go on with the pack, or are shrunk and encoded anew, some of them as JPEGs and the others
//! as plain pixels, which need no decoding (as in FFCV, Leclerc et al. 2023).

use std::borrow::Cow;
use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use image::imageops::{FilterType, resize};
use rayon::prelude::*;

use super::Progress;
use super::config::{Corrupt, DataConfig, Exif};
use super::decode::{decode, to_raw};
use super::index::{Index, Sample, encode};
use super::key::mix;
use super::samples::{REPORT_EVERY, Samples, check_side, decoded};
use crate::error::{Error, Result};
use crate::file;

/// Quality of new JPEGs, 1 to 100.
const QUALITY: u8 = 90;

/// How images are encoded anew.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// The longer side is at most this many pixels; `None` keeps the size.
    pub side: Option<u32>,
    /// What becomes of the orientations stored beside the images.
    pub exif: Exif,
    /// The share of images that become JPEGs, 0 to 1; the others become plain pixels.
    pub jpeg: f64,
}

/// A pack that was opened.
#[derive(Debug)]
pub(super) struct Pack {
    path: PathBuf,
    index: Index,
}

impl Pack {
    /// Opens the pack `config.dir`.
    ///
    /// # Errors
    /// If there is none, or its index is damaged.
    pub(super) fn open(config: &DataConfig) -> Result<Self> {
        check_side(config)?;
        let path = config.dir.clone();
        let bytes = file::map(&path, u64::MAX).map_err(Error::io("read", &path))?;
        let index = Index::of(bytes).ok_or_else(|| {
            let name = path.display();
            Error::Data(format!(
                "'{name}' is not a whole pack of this version; write one with train pack SOURCE --output FILE"
            ))
        })?;
        match index.head.exif {
            Some(exif) if exif != config.exif => {
                let [held, wanted] = [exif, config.exif].map(Exif::name);
                let (name, how) = (path.display(), if exif == Exif::Apply { "without" } else { "with" });
                Err(Error::usage(format!(
                    "'{name}' was encoded with data.exif={held}, but data.exif is '{wanted}'; give data.exif={held}, or \
                     write the pack again {how} --apply-exif"
                )))
            }
            _ => Ok(Self { path, index }),
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
        format!("'{name}' at byte {} of '{}'", self.index.offset(id), self.path.display())
    }
}

impl Pack {
    fn damaged(&self, id: usize) -> Error {
        Error::Data(format!("{} does not have its checksum; write the pack again with train pack", self.place(id)))
    }
}

/// Writes a pack of `samples` to `output`, which appears when it is complete; returns its bytes.
///
/// # Errors
/// If an image cannot be read or decoded, or the file cannot be written.
pub(super) fn write(
    samples: &dyn Samples,
    recipe: Option<Recipe>,
    output: &Path,
    progress: &dyn Fn(Progress),
) -> Result<u64> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = || Error::io("write", output);
    let file =
        tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder).map_err(failed())?;
    let mut writer = BufWriter::new(file);
    let (index, mut at) = (samples.index(), 0);
    let mut rows = [Vec::new(), Vec::new()];
    for (ids, rows) in index.splits().into_iter().zip(&mut rows) {
        for part in parts(ids) {
            let encoded: Vec<Result<Cow<[u8]>>> =
                part.clone().into_par_iter().map(|id| encoded(samples, id, recipe)).collect();
            for (id, bytes) in part.clone().zip(encoded) {
                let bytes = bytes?;
                let name = index.name(id);
                rows.push(Sample { label: index.label(id), name, file: 0, offset: at, length: bytes.len() as u32 });
                writer.write_all(&bytes).map_err(failed())?;
                writer.write_all(&crc32fast::hash(&bytes).to_le_bytes()).map_err(failed())?;
                at += bytes.len() as u64 + 4;
            }
            progress(Progress::Files { what: "images".into(), done: part.end, total: index.len() });
        }
    }
    let mut head = index.head.clone();
    (head.files, head.damaged, head.corrupt) = (Vec::new(), Vec::new(), Corrupt::Refuse);
    head.exif = recipe.map(|recipe| recipe.exif).or(head.exif);
    let end = encode(head, rows, at)?;
    writer.write_all(&end).map_err(failed())?;
    let file = writer.into_inner().map_err(|error| failed()(error.into_error()))?;
    file.as_file().sync_all().map_err(failed())?;
    file.persist(output).map_err(|error| failed()(error.error))?;
    Ok(at + end.len() as u64)
}

fn parts(ids: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = ids.end;
    ids.step_by(REPORT_EVERY).map(move |start| start..end.min(start + REPORT_EVERY))
}

/// The bytes of a sample in the pack.
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
