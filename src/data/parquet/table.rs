//! The columns of a Parquet file that make it an image data set, as the Hugging Face hub has them: pictures as the struct
//! `image` of `bytes` and `path`, or as bytes; classes as integers; the names of the classes in the file's metadata.

use bytes::Bytes;
use parquet::basic::Type;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use serde_json::Value;

use super::column::Chunk;
use super::page::{Fault, damaged};
use super::place::Place;

/// Columns with pictures, the first of which is taken.
const IMAGES: [&str; 4] = ["image.bytes", "img.bytes", "image", "img"];

/// Columns with classes, the first of which is taken.
const LABELS: [&str; 3] = ["label", "labels", "fine_label"];

/// Most rows of a file.
const MOST_ROWS: usize = 1 << 24;

/// Most bytes of a picture's name, as in most file systems: some bytes can claim any number of rows with the same long one.
const LONGEST_NAME: usize = 255;

/// A file whose footer was read.
pub(super) struct Table {
    file: Bytes,
    metadata: ParquetMetaData,
    image: usize,
    label: usize,
    /// The column with the names of the pictures.
    name: Option<usize>,
}

/// A row: a picture and its class.
pub(super) struct Row<'a> {
    /// In the file, from 0.
    pub(super) number: usize,
    /// As in `cat.jpg`; `None` if the file has none.
    pub(super) name: Option<&'a [u8]>,
    pub(super) label: i64,
    pub(super) picture: &'a [u8],
    pub(super) place: Place,
}

impl Table {
    /// Finds the columns of `file`: those of images and of classes with these names, or with usual ones if a name is empty.
    ///
    /// # Errors
    /// If it is not a whole Parquet file, or a column is missing.
    pub(super) fn of(file: Bytes, [image, label]: [&str; 2]) -> Result<Self, Fault> {
        let footer = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Skip).parse_and_finish(&file);
        let metadata = footer.map_err(|error| format!("is not a whole Parquet file, or {}", damaged(error)))?;
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
            let (missing, names, key) = match image {
                None => ("pictures", images.join(", "), "data.image_column"),
                Some(_) => ("integers as classes", labels.join(", "), "data.label_column"),
            };
            let there: Vec<String> = columns.iter().take(10).map(|it| it.path().string()).collect();
            let [names, there] = [names, there.join(", ")].map(|names| names.escape_debug().to_string());
            return Err(format!(
                "has no column of {missing} ({names}); its columns are {there}: name one with {key}=NAME"
            ));
        };
        let name = columns[image].path().string().strip_suffix(".bytes").map(|image| format!("{image}.path"));
        let name = name.and_then(|name| first(&[&name], &[Type::BYTE_ARRAY]));
        Ok(Self { file, metadata, image, label, name })
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

    /// Gives `visit` all rows in their order.
    ///
    /// # Errors
    /// If the file is damaged or a row is not complete, and those of `visit`.
    pub(super) fn rows<E: From<Fault>>(&self, mut visit: impl FnMut(Row) -> Result<(), E>) -> Result<(), E> {
        let mut first = 0;
        for group in self.metadata.row_groups() {
            // Some bytes can claim any number of rows of one picture.
            let most = MOST_ROWS.min(self.file.len());
            let rows = usize::try_from(group.num_rows()).ok().filter(|rows| first + rows <= most);
            let rows = rows.ok_or_else(|| format!("has '{}' rows, more than {most}", group.num_rows()))?;
            let labels = self.labels(group, rows, first)?;
            let names = self.names(group, rows, first)?;
            let (mut at, mut refusal) = (0, None);
            let read = self.chunk(group, self.image, rows).values(|value| {
                let number = first + at;
                let value = value
                    .ok_or_else(|| format!("has no picture in row {number}, at most its path: embed the bytes"))?;
                let name = names.get(at).and_then(|name| name.as_deref());
                let row = Row { number, name, label: labels[at], picture: value.bytes(), place: value.place() };
                at += 1;
                visit(row).map_err(|error| {
                    refusal = Some(error);
                    Fault::new()
                })
            });
            refusal.map_or(Ok(()), Err)?;
            read?;
            first += rows;
        }
        Ok(())
    }

    fn labels(&self, group: &RowGroupMetaData, rows: usize, first: usize) -> Result<Vec<i64>, Fault> {
        let mut labels = Vec::new();
        self.chunk(group, self.label, rows).values(|value| {
            let bytes = value.ok_or_else(|| format!("has no class in row {}", first + labels.len()))?.bytes();
            let long = bytes.first_chunk().map(|bytes| i64::from_le_bytes(*bytes));
            let short = bytes.first_chunk().map(|bytes| i64::from(i32::from_le_bytes(*bytes)));
            labels.push(long.or(short).ok_or_else(|| damaged("a class is not an integer"))?);
            Ok(())
        })?;
        Ok(labels)
    }

    /// The last parts of the pictures' paths; empty if there are none.
    fn names(&self, group: &RowGroupMetaData, rows: usize, first: usize) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let mut names = Vec::new();
        if let Some(column) = self.name {
            self.chunk(group, column, rows).values(|path| {
                let name = path.and_then(|path| path.bytes().rsplit(|byte| *byte == b'/').next());
                if let Some(length) = name.map(<[u8]>::len).filter(|length| *length > LONGEST_NAME) {
                    let row = first + names.len();
                    return Err(format!("has a name of '{length}' bytes in row {row}, more than {LONGEST_NAME}"));
                }
                names.push(name.filter(|name| !name.is_empty()).map(<[u8]>::to_vec));
                Ok(())
            })?;
        }
        Ok(names)
    }

    fn chunk<'a>(&'a self, group: &'a RowGroupMetaData, column: usize, rows: usize) -> Chunk<'a> {
        Chunk { file: &self.file, column: group.column(column), rows }
    }
}
