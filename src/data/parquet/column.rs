//! A column of a row group, page by page.
//!
//! The crate `parquet` finds the pages. Values are found in them here, so that their places are known and damage has no
//! effect but an error.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Type};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::SerializedPageReader;

use super::page::{Fault, Plain, Value, damaged};

/// A column of a row group.
pub(super) struct Chunk<'a> {
    pub(super) file: &'a Bytes,
    pub(super) column: &'a ColumnChunkMetaData,
    pub(super) rows: usize,
}

impl Chunk<'_> {
    /// Gives `visit` each value, or `None` for null.
    ///
    /// # Errors
    /// If the column is damaged, has another number of rows or an encoding in which values have no place, and those of
    /// `visit`.
    pub(super) fn values(&self, mut visit: impl FnMut(Option<Value>) -> Result<(), Fault>) -> Result<(), Fault> {
        let most = self.column.column_descr().max_def_level();
        let width = match self.column.column_type() {
            Type::INT32 => Some(4),
            Type::INT64 => Some(8),
            _ => None,
        };
        let short = || damaged("a page ends before its values");
        let mut dictionary: Option<Plain> = None;
        let mut left = self.rows;
        for page in self.pages()? {
            let page = Plain::of(page.map_err(damaged)?, self.column.compression(), self.file)?;
            if page.is_dictionary() {
                dictionary = Some(page);
                continue;
            }
            left = left.checked_sub(page.rows()).ok_or_else(|| self.uneven())?;
            let (mut levels, start) = page.levels(most).ok_or_else(short)?;
            let mut values = page.values(start, dictionary.as_ref(), width)?;
            for _ in 0..page.rows() {
                let level = levels.as_mut().map_or(Some(most as u32), Iterator::next).ok_or_else(short)?;
                visit(if level < most as u32 { None } else { Some(values.next().ok_or_else(short)?) })?;
            }
        }
        if left == 0 { Ok(()) } else { Err(self.uneven()) }
    }

    fn uneven(&self) -> Fault {
        format!("is damaged: its column '{}' does not have {} rows", self.column.column_path().string(), self.rows)
    }

    /// The pages as they are stored.
    fn pages(&self) -> Result<SerializedPageReader<Bytes>, Fault> {
        let column = self.column;
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let [start, length] = [start, column.compressed_size()].map(|number| u64::try_from(number).ok());
        let end = start.zip(length).and_then(|(start, length)| start.checked_add(length));
        if end.is_none_or(|end| end > self.file.len() as u64) {
            return Err(format!("is cut off: it ends before its column '{}'", column.column_path().string()));
        }
        // The reader takes them for uncompressed and passes slices of the file on.
        let stored = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build();
        let stored = stored.map_err(damaged)?;
        SerializedPageReader::new(Arc::new(self.file.clone()), &stored, self.rows, None).map_err(damaged)
    }
}
