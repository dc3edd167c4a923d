//! Parquet files: the same data set as the folder of the same images in every encoding, and everything that can be
//! wrong.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use kiln_data::{Corrupt, DataConfig, Source, fingerprint, pack};
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use tempfile::{TempDir, tempdir};

use super::shards::{IMAGES, both, complaint, config, content, picture};
use super::{assert_names, load};
use crate::parquet_files::{Row, SCHEMA, write, write_as};
use crate::python::ask;

/// The images of a split in the order of [`IMAGES`].
fn images(split: &str) -> Vec<(Vec<u8>, String, i64)> {
    let of_split = IMAGES.into_iter().enumerate().filter(|(_, image)| image.0 == split);
    of_split
        .map(|(number, (_, class, key))| {
            let (bytes, suffix) = picture(number);
            (bytes, format!("{key}.{suffix}"), class as i64)
        })
        .collect()
}

fn write_images(path: &Path, images: &[(Vec<u8>, String, i64)], properties: WriterPropertiesBuilder) {
    let rows: Vec<Row> =
        images.iter().map(|(bytes, name, class)| (Some(&bytes[..]), Some(&name[..]), Some(*class))).collect();
    write(path, &["cat", "dog"], &rows, properties);
}

/// The images in two files for training and one for validation.
fn files(properties: impl Fn() -> WriterPropertiesBuilder) -> TempDir {
    let dir = tempdir().unwrap();
    let training = images("train");
    write_images(&dir.path().join("train-00000-of-00002.parquet"), &training[3..], properties());
    write_images(&dir.path().join("train-00001-of-00002.parquet"), &training[..3], properties());
    write_images(&dir.path().join("validation-00000-of-00001.parquet"), &images("val"), properties());
    dir
}

fn plain() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_dictionary_enabled(false)
}

fn second_version() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_writer_version(WriterVersion::PARQUET_2_0).set_data_page_row_count_limit(1)
}

fn delta() -> WriterPropertiesBuilder {
    let column = ColumnPath::new(vec!["image".into(), "bytes".into()]);
    plain().set_column_encoding(column, Encoding::DELTA_BYTE_ARRAY)
}

fn parquet_of(dir: &Path) -> DataConfig {
    config(Source::Parquet, dir)
}

#[test]
fn folder_parquet_files_and_a_pack_of_them_are_one_data_set() {
    let (folder, _) = both();
    let expected = load(&config(Source::Folder, folder.path())).unwrap();
    for properties in [WriterProperties::builder, plain, second_version, delta] {
        let dir = files(properties);
        for cache_mb in [0, 100] {
            let splits = load(&DataConfig { cache_mb, ..parquet_of(dir.path()) }).unwrap();
            assert_eq!((fingerprint(&splits), content(&splits)), (fingerprint(&expected), content(&expected)));
            assert!(splits.notes.is_empty(), "{:?}", splits.notes);
        }
        let file = dir.path().join("images.pack");
        for source in
            [dir.path().to_path_buf(), dir.path().join("{train-0000{0,1}-of-00002,validation-00000-of-00001}.parquet")]
        {
            assert_eq!(pack(&config(Source::Pack, &source), None, &file, &|_| {}).unwrap().images, IMAGES.len());
            let splits = load(&config(Source::Pack, &file)).unwrap();
            assert_eq!((fingerprint(&splits), content(&splits)), (fingerprint(&expected), content(&expected)));
        }
    }
}

/// Runs where the virtual environment of `make setup-tch` has pyarrow.
#[test]
fn parquet_files_of_python_are_read_in_every_encoding() {
    let (folder, target) = (both().0, tempdir().unwrap());
    let written = ask("pyarrow", "images/parquet_files.py", &[folder.path(), target.path()]);
    let Some(written) = written else { return };
    let expected = load(&config(Source::Folder, folder.path())).unwrap();
    assert!(written.lines().count() > 30);
    for set in written.lines() {
        let splits = load(&parquet_of(&target.path().join(set))).unwrap();
        assert_eq!(content(&splits), content(&expected), "{set}");
        let is_named = set != "bytes" && !set.starts_with("nameless");
        assert_eq!(fingerprint(&splits) == fingerprint(&expected), is_named, "{set}");
    }
    for set in ["none-1.0-dictionary", "snappy-2.0-plain", "zstd-1.0-dictionary-pages", "gzip-2.0-dictionary"] {
        every_damage(&target.path().join(set), "validation-00000-of-00001.parquet");
    }
}

/// Runs where the virtual environment of `make setup-tch` has Hugging Face's `datasets`.
#[test]
fn files_of_the_library_datasets_are_the_folder_that_they_were_made_of() {
    let (folder, target) = (both().0, tempdir().unwrap());
    let Some(files) = ask("datasets", "images/datasets_files.py", &[folder.path(), target.path()]) else { return };
    assert_eq!(files.trim(), "3");
    let expected = load(&config(Source::Folder, folder.path())).unwrap();
    let theirs = load(&parquet_of(target.path())).unwrap();
    assert_eq!((fingerprint(&theirs), content(&theirs)), (fingerprint(&expected), content(&expected)));
}

#[test]
fn every_flipped_byte_and_every_end_of_a_parquet_file_is_the_same_data_or_one_line() {
    for properties in [WriterProperties::builder, plain, second_version] {
        every_damage(files(properties).path(), "validation-00000-of-00001.parquet");
    }
}

fn every_damage(dir: &Path, file: &str) {
    let path = dir.join(file);
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    for (at, mask) in (0..whole.len()).flat_map(|at| [(at, 0x41), (at, 0x80), (at, 0xff)]).step_by(5) {
        let mut damaged = whole.clone();
        damaged[at] ^= mask;
        fs::write(&path, damaged).unwrap();
        if let Err(error) = load(&parquet_of(dir)) {
            assert_eq!(error.to_string().lines().count(), 1, "byte {at}: {error}");
            refused += 1;
        }
    }
    assert!(refused > 100, "only {refused} were refused");
    for length in (0..whole.len()).step_by(37) {
        fs::write(&path, &whole[..length]).unwrap();
        assert_names(&complaint(&parquet_of(dir)), &[file, "is not a whole Parquet file", "again"]);
    }
    fs::write(&path, whole).unwrap();
    load(&parquet_of(dir)).unwrap();
}

#[test]
fn names_of_files_say_which_split_they_are_of() {
    let dir = files(WriterProperties::builder);
    let expected = fingerprint(&load(&parquet_of(dir.path())).unwrap());
    let validation = dir.path().join("validation-00000-of-00001.parquet");
    for name in ["test-00000-of-00001.parquet", "val.parquet", "valid/0000.parquet"] {
        let renamed = dir.path().join(name);
        fs::create_dir_all(renamed.parent().unwrap()).unwrap();
        fs::rename(&validation, &renamed).unwrap();
        assert_eq!(fingerprint(&load(&parquet_of(dir.path())).unwrap()), expected, "{name}");
        fs::rename(&renamed, &validation).unwrap();
    }
    fs::rename(&validation, dir.path().join("0000.parquet")).unwrap();
    assert_names(&complaint(&parquet_of(dir.path())), &["0000.parquet' is of no split", "val*.parquet"]);
    fs::remove_file(dir.path().join("0000.parquet")).unwrap();
    assert_names(
        &complaint(&parquet_of(dir.path())),
        &["no shards of val or test", "--data parquet reads train*.parquet"],
    );
}

#[test]
fn files_one_folder_down_are_found_where_the_hub_has_them() {
    let dir = files(WriterProperties::builder);
    let expected = fingerprint(&load(&parquet_of(dir.path())).unwrap());
    let hub = tempdir().unwrap();
    fs::rename(dir.path(), hub.path().join("data")).unwrap();
    fs::write(hub.path().join("README.md"), "a card").unwrap();
    assert_eq!(fingerprint(&load(&parquet_of(hub.path())).unwrap()), expected);
    let data = hub.path().join("data");
    fs::create_dir(data.join("validation")).unwrap();
    fs::rename(data.join("validation-00000-of-00001.parquet"), data.join("validation/0.parquet")).unwrap();
    assert_eq!(fingerprint(&load(&parquet_of(hub.path())).unwrap()), expected);
    fs::create_dir(dir.path()).unwrap();
}

#[test]
fn columns_of_any_name_are_read_when_they_are_named() {
    let (usual, other) = (files(WriterProperties::builder), tempdir().unwrap());
    let schema = SCHEMA.replace("image", "photo").replace("label", "kind");
    for (name, split) in [("train-0.parquet", "train"), ("test-0.parquet", "val")] {
        let images = images(split);
        let rows: Vec<Row> =
            images.iter().map(|(bytes, name, class)| (Some(&bytes[..]), Some(&name[..]), Some(*class))).collect();
        write_as(&schema, &other.path().join(name), &[], &rows, WriterProperties::builder());
    }
    let there = "photo.bytes, photo.path, kind";
    assert_names(&complaint(&parquet_of(other.path())), &["pictures", there, "data.image_column=NAME"]);
    let photo = DataConfig { image_column: "photo".into(), ..parquet_of(other.path()) };
    assert_names(&complaint(&photo), &["integers as classes", there, "data.label_column=NAME"]);
    let named = DataConfig { label_column: "kind".into(), ..photo };
    let expected = content(&load(&parquet_of(usual.path())).unwrap()).1;
    assert_eq!(content(&load(&named).unwrap()).1, expected);
    let wrong = DataConfig { label_column: "photo".into(), ..named.clone() };
    assert_names(&complaint(&wrong), &["integers as classes (photo)"]);
}

#[test]
fn rows_that_are_not_whole_are_refused_by_file_and_row() {
    let dir = files(WriterProperties::builder);
    let path = dir.path().join("validation-00000-of-00001.parquet");
    let (jpeg, _) = picture(0);
    let good: Row = (Some(&jpeg), Some("a.jpg"), Some(0));
    let expect = |classes: &[&str], row: Row, parts: &[&str]| {
        write(&path, classes, &[good, good, good, row], WriterProperties::builder());
        let file = "validation-00000-of-00001.parquet'";
        assert_names(&complaint(&parquet_of(dir.path())), &[&[file], parts].concat());
    };
    let known = ["cat", "dog"];
    expect(&known, (None, Some("a.jpg"), Some(0)), &["has no picture in row 3", "again"]);
    expect(&known, (Some(&jpeg), Some("a.jpg"), None), &["has no class in row 3"]);
    for label in [-1, 2, i64::MAX, i64::MIN] {
        let said = format!("has the class '{label}' in row 3; a class is a number from 0 to 1");
        expect(&known, (Some(&jpeg), Some("a.jpg"), Some(label)), &[&said]);
    }
    let said = "has a name of '256' bytes in row 3, more than 255";
    expect(&known, (Some(&jpeg), Some(&format!("a/{}", "n".repeat(256))), Some(0)), &[said]);
    expect(&["dog", "cat"], good, &["has other names of classes than the first file"]);
    expect(&[], good, &["has other names of classes than the first file"]);
    expect(&known, (Some(&jpeg[..300]), Some("a\n.jpg"), Some(1)), &[r"'a\n.jpg' in row 3 of", "is cut off"]);
    expect(
        &known,
        (Some(b""), None, Some(1)),
        &[".parquet/00000003' in row 3 of", "is not a JPEG", "data.corrupt=skip"],
    );
    let skipping = load(&DataConfig { corrupt: Corrupt::Skip, ..parquet_of(dir.path()) }).unwrap();
    assert_eq!(skipping.validation.len(), 3);
    assert_names(&skipping.notes.join("; "), &["1 damaged image left out by data.corrupt=skip", "row 3"]);
    write(&path, &known, &[], WriterProperties::builder());
    assert_names(&complaint(&parquet_of(dir.path())), &["has no images for validation"]);
}

#[test]
fn other_columns_are_named() {
    let dir = files(WriterProperties::builder);
    let path = dir.path().join("validation-00000-of-00001.parquet");
    for (columns, parts) in [
        (
            "required binary picture; required int64 label;",
            ["has no column of pictures (image.bytes, img", "picture, label"],
        ),
        (
            "required binary image; required binary label (UTF8);",
            ["no column of integers as classes (label", "image, label"],
        ),
        ("repeated binary image; required int64 label;", ["has no column of pictures", "image, label"]),
    ] {
        let schema = Arc::new(parse_message_type(&format!("message schema {{ {columns} }}")).unwrap());
        SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::default()).unwrap().close().unwrap();
        assert_names(&complaint(&parquet_of(dir.path())), &parts);
    }
}

#[test]
fn classes_without_names_are_numbers() {
    let dir = tempdir().unwrap();
    let (jpeg, _) = picture(0);
    for (name, label) in [("train.parquet", 2), ("test.parquet", 1)] {
        write(&dir.path().join(name), &[], &[(Some(&jpeg), None, Some(label))], WriterProperties::builder());
    }
    let splits = load(&parquet_of(dir.path())).unwrap();
    assert_eq!(splits.train.classes(), ["0", "1", "2"]);
    assert_names(&splits.notes.join("; "), &["the classes in", "have no names, only numbers"]);
}

#[test]
fn a_file_with_more_rows_than_bytes_is_refused() {
    let dir = tempdir().unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1 << 20));
    let schema =
        Arc::new(parse_message_type("message schema { required binary image; required int64 label; }").unwrap());
    let path = dir.path().join("train-0.parquet");
    let file = File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let rows = 100_000;
    let mut column = group.next_column().unwrap().unwrap();
    let picture = ByteArray::from(picture(1).0);
    column.typed::<ByteArrayType>().write_batch(&vec![picture; rows], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&vec![0; rows], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let length = fs::metadata(&path).unwrap().len();
    assert!(length < rows as u64, "all rows have the same picture");
    fs::copy(&path, dir.path().join("val-0.parquet")).unwrap();
    let message = complaint(&config(Source::Parquet, dir.path()));
    assert_names(&message, &["train-0.parquet", "'100000' rows", &format!("more than {length}")]);
}
