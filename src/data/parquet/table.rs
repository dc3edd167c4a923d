//! The columns of a Parquet file that make it an image data set, as the Hugging Face hub has them: pictures as the
//! struct `image` of `bytes` and `path`, or as bytes; classes as integers; the names of the classes in the file's
//! metadata.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::Type;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use serde_json::Value;

use super::pages::Pages;
use crate::decode::guarded;

/// Columns with pictures, the first of which is taken.
const IMAGES: [&str; 4] = ["image.bytes", "img.bytes", "image", "img"];

/// Columns with classes, the first of which is taken.
const LABELS: [&str; 3] = ["label", "labels", "fine_label"];

/// Most rows of a file.
const MOST_ROWS: u64 = 1 << 24;

/// Most bytes of a picture's name, as in most file systems: some bytes can claim any number of rows with the same long
/// one.
const LONGEST_NAME: usize = 255;

/// Rows that are read together.
const BATCH: usize = 64;

/// The second half of a sentence about a file.
pub(super) type Fault = String;

/// An error of the crate as half a sentence; some have several lines.
fn damaged(error: impl std::fmt::Display) -> Fault {
    format!("is damaged: {}", error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A file whose footer was read.
pub(super) struct Table {
    file: Arc<File>,
    length: u64,
    metadata: ParquetMetaData,
    image: usize,
    label: usize,
    /// The column with the names of the pictures.
    name: Option<usize>,
}

/// A row: a picture and its class.
pub(super) struct Row {
    /// In the file, from 0.
    pub(super) number: usize,
    /// As in `cat.jpg`; `None` if the file has none.
    pub(super) name: Option<Vec<u8>>,
    pub(super) label: i64,
    pub(super) picture: ByteArray,
}

/// Reads the next rows of a column: values, or `None` for null.
type Column<'a, T> = Box<dyn FnMut() -> Result<Vec<Option<T>>, Fault> + 'a>;

impl Table {
    /// Finds the columns of a file of `length` bytes: those of images and of classes with these names, or with usual
    /// ones if a name is empty.
    pub(super) fn of(file: File, length: u64, [image, label]: [&str; 2]) -> Result<Self, Fault> {
        let reader = || ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Skip);
        let footer = guarded(|| reader().parse_and_finish(&file).map_err(|error| error.to_string()));
        let metadata =
            footer.flatten().map_err(|error| format!("is not a whole Parquet file, or {}", damaged(error)))?;
        let columns = metadata.file_metadata().schema_descr().columns();
        let find = |path: &str| columns.iter().position(|it| it.path().string() == path && it.max_rep_level() == 0);
        let first = |paths: &[&str], kinds: &[Type]| {
            let found = paths.iter().filter_map(|path| find(path));
            found.into_iter().find(|at| kinds.contains(&columns[*at].physical_type()))
        };
        let bytes = format!("{image}.bytes");
        let images = if image.is_empty() { &IMAGES[..] } else { &[&bytes, image] };
        let labels = if label.is_empty() { &LABELS[..] } else { &[label] };
        let image = first(images, &[Type::BYTE_ARRAY]);
        let label = first(labels, &[Type::INT32, Type::INT64]);
        let (Some(image), Some(label)) = (image, label) else {
            let (missing, names, kind) = match image {
                None => ("pictures", images.join(", "), "image"),
                Some(_) => ("integers as classes", labels.join(", "), "label"),
            };
            let there: Vec<String> = columns.iter().take(10).map(|it| it.path().string()).collect();
            let [names, there] = [names, there.join(", ")].map(|names| names.escape_debug().to_string());
            return Err(format!(
                "has no column of {missing} ({names}); its columns are {there}: name one with data.{kind}_column=NAME (train \
                 pack: --{kind}-column)"
            ));
        };
        let name = columns[image].path().string().strip_suffix(".bytes").map(|image| format!("{image}.path"));
        let name = name.and_then(|name| first(&[&name], &[Type::BYTE_ARRAY]));
        Ok(Self { file: Arc::new(file), length, metadata, image, label, name })
    }

    /// The names of the classes in the metadata that the library `datasets` writes.
    pub(super) fn class_names(&self) -> Option<Vec<String>> {
        let metadata = self.metadata.file_metadata();
        let label = metadata.schema_descr().column(self.label).path().string();
        let written = metadata.key_value_metadata()?.iter().find(|pair| pair.key == "huggingface")?;
        let written: Value = serde_json::from_str(written.value.as_ref()?).ok()?;
        let names = written["info"]["features"][label]["names"].as_array()?;
        let names: Option<Vec<String>> = names.iter().map(|name| Some(name.as_str()?.to_string())).collect();
        names.filter(|names| !names.is_empty())
    }

    /// The rows in front of each row group, and of the whole file.
    pub(super) fn starts(&self) -> Result<Vec<usize>, Fault> {
        // Some bytes can claim any number of rows of one picture.
        let most = MOST_ROWS.min(self.length);
        let mut starts = vec![0];
        for group in self.metadata.row_groups() {
            let rows =
                u64::try_from(group.num_rows()).ok().filter(|rows| *rows <= most - starts[starts.len() - 1] as u64);
            let rows = rows.ok_or_else(|| format!("has '{}' rows, more than {most}", group.num_rows()))?;
            starts.push(starts[starts.len() - 1] + rows as usize);
        }
        Ok(starts)
    }

    /// The bytes of all pictures, with little else.
    pub(super) fn picture_bytes(&self) -> u64 {
        let bytes = |size| u64::try_from(size).unwrap_or_default();
        let sizes = self.metadata.row_groups().iter().map(|group| bytes(group.column(self.image).uncompressed_size()));
        sizes.fold(0, u64::saturating_add)
    }

    /// Reads the `rows` of a row group; the last rows are none.
    pub(super) fn group(
        &self,
        group: usize,
        rows: std::ops::Range<usize>,
    ) -> Result<impl FnMut() -> Result<Vec<Row>, Fault>, Fault> {
        let named = move |fault: Fault| format!("is damaged: row group {group} {fault}");
        let open = || -> Result<_, Fault> {
            let images = self.column::<ByteArrayType>(group, self.image, &rows)?;
            let names = self.name.map(|name| self.column::<ByteArrayType>(group, name, &rows)).transpose()?;
            let is_short =
                self.metadata.file_metadata().schema_descr().column(self.label).physical_type() == Type::INT32;
            let labels: Column<i64> = if is_short {
                let mut short = self.column::<Int32Type>(group, self.label, &rows)?;
                Box::new(move || Ok(short()?.into_iter().map(|label| label.map(i64::from)).collect()))
            } else {
                self.column::<Int64Type>(group, self.label, &rows)?
            };
            Ok((images, names, labels))
        };
        let (mut images, mut names, mut labels) = guarded(open).map_err(named).flatten()?;
        let mut left = rows.clone();
        Ok(move || {
            let next = || -> Result<_, Fault> {
                let (images, labels) = (images()?, labels()?);
                let names = names.as_mut().map_or_else(|| Ok(vec![None; images.len()]), |names| names())?;
                Ok((images, labels, names))
            };
            let (images, labels, names) = guarded(next).map_err(named).flatten()?;
            let is_over = images.is_empty() != left.is_empty();
            if images.len() > left.len() || is_over || [labels.len(), names.len()] != [images.len(); 2] {
                return Err(format!(
                    "is damaged: the columns of row group {group} do not have {} rows each",
                    rows.len()
                ));
            }
            let read = images.into_iter().zip(labels).zip(names).zip(left.by_ref());
            read.map(|(((picture, label), name), number)| row(number, picture, label, name)).collect()
        })
    }

    fn column<'a, T: DataType>(
        &'a self,
        group: usize,
        column: usize,
        rows: &std::ops::Range<usize>,
    ) -> Result<Column<'a, T::T>, Fault> {
        let chunk = self.metadata.row_group(group).column(column);
        let in_group = move |error| damaged(format!("row group {group}: {error}"));
        let most = chunk.column_descr().max_def_level();
        let pages = Pages::of(&self.file, self.length, chunk, rows.len()).map_err(in_group)?;
        let mut reader = ColumnReaderImpl::<T>::new(chunk.column_descr_ptr(), Box::new(pages));
        Ok(Box::new(move || {
            let (mut levels, mut values) = (Vec::new(), Vec::new());
            let (rows, ..) = reader.read_records(BATCH, Some(&mut levels), None, &mut values).map_err(in_group)?;
            levels.resize(rows, most);
            let mut values = values.into_iter();
            Ok(levels.into_iter().map(|level| if level == most { values.next() } else { None }).collect())
        }))
    }
}

/// A complete row; its name is the last part of the picture's path.
fn row(number: usize, picture: Option<ByteArray>, label: Option<i64>, path: Option<ByteArray>) -> Result<Row, Fault> {
    let picture =
        picture.ok_or_else(|| format!("has no picture in row {number}, at most its path: embed the bytes"))?;
    let label = label.ok_or_else(|| format!("has no class in row {number}"))?;
    let name = path.as_ref().and_then(|path| path.data().rsplit(|byte| *byte == b'/').next());
    let name = name.filter(|name| !name.is_empty()).map(<[u8]>::to_vec);
    match name.as_ref().map(Vec::len).filter(|length| *length > LONGEST_NAME) {
        Some(length) => Err(format!("has a name of '{length}' bytes in row {number}, more than {LONGEST_NAME}")),
        None => Ok(Row { number, name, label, picture }),
    }
}
