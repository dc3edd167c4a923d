//! Parquet files as a hub has them, written for tests.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterPropertiesBuilder;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

pub const SCHEMA: &str = "message schema {
    optional group image { optional binary bytes; optional binary path (UTF8); }
    optional int64 label;
}";

/// Bytes, name and class of an image, each of which may be null.
pub type Row<'a> = (Option<&'a [u8]>, Option<&'a str>, Option<i64>);

/// Writes rows in groups of three.
pub fn write(path: &Path, classes: &[&str], rows: &[Row], properties: WriterPropertiesBuilder) {
    write_as(SCHEMA, path, classes, rows, properties);
}

pub fn write_as(schema: &str, path: &Path, classes: &[&str], rows: &[Row], properties: WriterPropertiesBuilder) {
    let features = format!("{{\"info\": {{\"features\": {{\"label\": {{\"names\": {classes:?}}}}}}}}}");
    let metadata = (!classes.is_empty()).then(|| vec![KeyValue::new("huggingface".into(), features)]);
    let properties = Arc::new(properties.set_key_value_metadata(metadata).build());
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    for rows in rows.chunks(3) {
        let mut group = writer.next_row_group().unwrap();
        let mut write = |values: Vec<Option<&[u8]>>| {
            let levels: Vec<i16> = values.iter().map(|value| if value.is_some() { 2 } else { 1 }).collect();
            let values: Vec<ByteArray> = values.into_iter().flatten().map(|value| value.to_vec().into()).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
            column.close().unwrap();
        };
        write(rows.iter().map(|(bytes, ..)| *bytes).collect());
        write(rows.iter().map(|(_, name, _)| name.map(str::as_bytes)).collect());
        let levels: Vec<i16> = rows.iter().map(|(.., label)| i16::from(label.is_some())).collect();
        let labels: Vec<i64> = rows.iter().filter_map(|(.., label)| *label).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&labels, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}
