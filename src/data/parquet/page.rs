//! A page without compression, and where each of its values is stored in the file.
//!
//! Pages are decompressed here, so that their size has a limit. The format: apache/parquet-format, Encodings.md.

use std::ops::Range;

use parquet::basic::{Compression, Encoding};
use parquet::column::page::Page;

use super::hybrid::Hybrid;
use super::place::{Codec, Place};
use super::snappy::{self, Start};

/// The second half of a sentence about a file.
pub(super) type Fault = String;

/// An error of the crate as half a sentence; some have several lines.
pub(super) fn damaged(error: impl std::fmt::Display) -> Fault {
    format!("is damaged: {}", error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A page without compression.
pub(super) struct Plain {
    page: Page,
    /// The bytes of levels that are not compressed, in front of the others.
    levels: usize,
    codec: Codec,
    /// Of what is compressed, in the file.
    position: u64,
    /// For Snappy.
    starts: Vec<Start>,
}

impl Plain {
    /// A page as it is stored: a slice of `file`.
    ///
    /// # Errors
    /// If it cannot be decompressed.
    pub(super) fn of(mut page: Page, compression: Compression, file: &[u8]) -> Result<Self, Fault> {
        let codec = match compression {
            Compression::UNCOMPRESSED => Codec::None,
            Compression::SNAPPY => Codec::Snappy,
            Compression::ZSTD(_) => Codec::Zstd,
            Compression::GZIP(_) => Codec::Gzip,
            other => return Err(format!("is compressed with {other}, not with Snappy, Zstandard or gzip")),
        };
        let (levels, is_compressed) = match page {
            Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
                (def_levels_byte_len as usize + rep_levels_byte_len as usize, is_compressed)
            }
            _ => (0, true),
        };
        let (Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } | Page::DictionaryPage { buf, .. }) = &mut page;
        let stored = buf.clone();
        let body = stored.get(levels..).ok_or_else(|| damaged("a page ends before its values"))?;
        // Nothing lies in an empty page, which may be no slice of the file.
        let position = (body.as_ptr() as usize).wrapping_sub(file.as_ptr() as usize) as u64;
        if codec == Codec::None || !is_compressed || body.is_empty() {
            return Ok(Self { page, levels, codec: Codec::None, position, starts: Vec::new() });
        }
        let plain = codec.whole(body).map_err(damaged)?;
        let starts = if codec == Codec::Snappy { snappy::starts(body).map_err(damaged)? } else { Vec::new() };
        *buf = if levels == 0 { plain.into() } else { [&stored[..levels], &plain].concat().into() };
        Ok(Self { page, levels, codec, position, starts })
    }

    pub(super) fn is_dictionary(&self) -> bool {
        self.page.is_dictionary_page()
    }

    pub(super) fn rows(&self) -> usize {
        self.page.num_values() as usize
    }

    fn bytes(&self) -> &[u8] {
        self.page.buffer()
    }

    /// Where byte `at` of the page is stored.
    fn place(&self, at: usize) -> Place {
        let (codec, position, at) = (self.codec, self.position, at - self.levels);
        let start = self.starts.partition_point(|start| start.plain <= at).checked_sub(1).map(|last| self.starts[last]);
        match start {
            Some(Start { plain, encoded }) => {
                Place { codec, position: position + encoded as u64, skip: (at - plain) as u64 }
            }
            None if codec == Codec::None => Place { codec, position: position + at as u64, skip: 0 },
            None => Place { codec, position, skip: at as u64 },
        }
    }

    /// The definition levels of a column and what follows them; a column without nulls has none.
    pub(super) fn levels(&self, most: i16) -> Option<(Option<Hybrid<'_>>, usize)> {
        let bytes = self.bytes();
        let (levels, end) = match self.page {
            Page::DataPageV2 { rep_levels_byte_len, .. } => (rep_levels_byte_len as usize..self.levels, self.levels),
            _ if most == 0 => (0..0, 0),
            Page::DataPage { def_level_encoding: Encoding::RLE, .. } => {
                let length = u32::from_le_bytes(*bytes.first_chunk()?);
                let end = 4_usize.checked_add(length as usize)?;
                (4..end, end)
            }
            _ => return None,
        };
        let levels = Hybrid::new(bytes.get(levels)?, (most as u16 + 1).next_power_of_two().ilog2())?;
        (end <= bytes.len()).then_some(((most > 0).then_some(levels), end))
    }

    /// The values that begin at `start`, without nulls: of `width` bytes each, or each with a length.
    ///
    /// # Errors
    /// If their encoding leaves them no place of their own, or there is no dictionary.
    pub(super) fn values<'a>(
        &'a self,
        start: usize,
        dictionary: Option<&'a Self>,
        width: Option<usize>,
    ) -> Result<Box<dyn Iterator<Item = Value<'a>> + 'a>, Fault> {
        match (self.page.encoding(), dictionary) {
            (Encoding::PLAIN, _) => {
                Ok(Box::new(plain(self.bytes(), start, width).map(|range| Value { page: self, range })))
            }
            (Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY, Some(dictionary)) => {
                let known: Vec<Range<usize>> = plain(dictionary.bytes(), 0, width).collect();
                let (bits, packed) = self.bytes()[start..].split_first().unwrap_or((&0, &[]));
                let numbers =
                    Hybrid::new(packed, u32::from(*bits)).ok_or_else(|| damaged("its dictionary is too large"))?;
                let range = move |number: u32| known.get(number as usize).cloned();
                Ok(Box::new(numbers.map_while(range).map(|range| Value { page: dictionary, range })))
            }
            (Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY, None) => {
                Err(damaged("a page lacks its dictionary"))
            }
            (encoding, _) => Err(format!("has values in the encoding {encoding}, not plain or in a dictionary")),
        }
    }
}

/// Values in plain encoding from `start` on: of `width` bytes each, or each after its length.
fn plain(page: &[u8], start: usize, width: Option<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = start;
    std::iter::from_fn(move || {
        let (start, length) = match width {
            Some(width) => (at, width),
            None => (at + 4, u32::from_le_bytes(*page.get(at..)?.first_chunk()?) as usize),
        };
        at = start.checked_add(length).filter(|end| *end <= page.len())?;
        Some(start..at)
    })
}

/// A value in a page.
pub(super) struct Value<'a> {
    page: &'a Plain,
    range: Range<usize>,
}

impl<'a> Value<'a> {
    pub(super) fn bytes(&self) -> &'a [u8] {
        &self.page.bytes()[self.range.clone()]
    }

    pub(super) fn place(&self) -> Place {
        self.page.place(self.range.start)
    }
}
