//! The pages of a column, decompressed within bounds: the crate `parquet` makes room for whatever a page claims to
//! hold.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::SerializedPageReader;
use ruzstd::decoding::StreamingDecoder;

/// Most bytes of a page.
const LARGEST: u64 = 1 << 30;

/// Most bytes of a page that takes fewer in the file than a [`MOST_TIMES`]th of them, as repeated classes do.
pub(super) const SMALL: u64 = 16 << 20;

/// Most bytes of anything larger for one in the file; pictures are compressed already.
pub(super) const MOST_TIMES: u64 = 32;

pub(super) struct Pages {
    stored: SerializedPageReader<File>,
    compression: Compression,
}

impl Pages {
    /// The pages of `column`, which has `rows` rows.
    pub(super) fn of(file: &Arc<File>, length: u64, column: &ColumnChunkMetaData, rows: usize) -> Result<Self> {
        let compression = column.compression();
        if !matches!(
            compression,
            Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_) | Compression::GZIP(_)
        ) {
            let fault = format!("pages are compressed with {compression}, not with Snappy, Zstandard or gzip");
            return Err(ParquetError::General(fault));
        }
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let end = start.checked_add(column.compressed_size()).filter(|end| start >= 0 && *end >= start);
        if end.is_none_or(|end| end as u64 > length) {
            return Err(ParquetError::EOF(format!("the file ends before column '{}'", column.column_path().string())));
        }
        // The reader takes pages for uncompressed and gives them as they are stored.
        let stored = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        Ok(Self { stored: SerializedPageReader::new(file.clone(), &stored, rows, None)?, compression })
    }

    fn plain(&self, mut page: Page) -> Result<Page> {
        let (levels, is_compressed) = match page {
            Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
                (def_levels_byte_len as usize + rep_levels_byte_len as usize, is_compressed)
            }
            _ => (0, true),
        };
        let dictionary = page.is_dictionary_page().then(|| page.num_values() as usize);
        let (Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } | Page::DictionaryPage { buf, .. }) = &mut page;
        if self.compression != Compression::UNCOMPRESSED && is_compressed && levels < buf.len() {
            let mut plain = buf[..levels].to_vec();
            decompress(&buf[levels..], self.compression, &mut plain)?;
            *buf = plain.into();
        }
        // Room is made for all values of a dictionary at once; each takes four bytes, or more.
        if dictionary.is_some_and(|values| values > buf.len() / 4) {
            return Err(ParquetError::General("a dictionary has fewer values than it says".into()));
        }
        Ok(page)
    }
}

/// Appends what a compressed page holds to `plain`.
fn decompress(page: &[u8], compression: Compression, plain: &mut Vec<u8>) -> io::Result<()> {
    let most = (MOST_TIMES * page.len() as u64).clamp(SMALL, LARGEST);
    let start = plain.len();
    let length = match compression {
        Compression::SNAPPY => {
            let length = snap::raw::decompress_len(page)?;
            if length as u64 <= most {
                plain.resize(start + length, 0);
                snap::raw::Decoder::new().decompress(page, &mut plain[start..])?;
            }
            length
        }
        Compression::GZIP(_) => MultiGzDecoder::new(page).take(most + 1).read_to_end(plain)?,
        _ => StreamingDecoder::new(page).map_err(io::Error::other)?.take(most + 1).read_to_end(plain)?,
    };
    let fault = || format!("a page of {} compressed bytes has more than {most}", page.len());
    if length as u64 > most { Err(io::Error::new(ErrorKind::FileTooLarge, fault())) } else { Ok(()) }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.stored.get_next_page()?.map(|page| self.plain(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.stored.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.stored.skip_next_page()
    }
}
