//! Parquet files become a pack in the user's cache, once.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::command::{Workplace, errors, refused, succeeded};
use crate::disk::SmallDisk;
use crate::files::age;
use crate::skipped::skip;
use crate::storage::stored;

const HUB: [&str; 5] = ["--data=parquet", "--data-dir=hub", "--image-size=16", "--max-steps=1", "--cache-mb=0"];

/// Files that have not changed for a minute, and their runs.
fn place() -> Workplace {
    let place = Workplace::new();
    stored(&place);
    age(&place.path("hub"));
    place
}

fn run(place: &Workplace, cache: &str, arguments: &[&str]) -> Command {
    drop(fs::remove_dir_all(place.path("run")));
    let mut command = place.small("run", &[&HUB, arguments].concat());
    command.env("XDG_CACHE_HOME", place.path(cache));
    command
}

fn said(place: &Workplace, arguments: &[&str]) -> String {
    succeeded(&run(place, "cache", arguments).output().unwrap())
}

/// What is in the cache.
fn kept(place: &Workplace, cache: &str) -> Vec<PathBuf> {
    fs::read_dir(place.path(cache).join("kiln"))
        .map(|names| names.map(|it| it.unwrap().path()).collect())
        .unwrap_or_default()
}

#[test]
fn files_are_converted_once_and_again_when_they_change() {
    let place = place();
    let converting = "hub: 46 images in 3 Parquet files, 0.0 MB, into ";
    let dry = said(&place, &["--dry-run"]);
    assert!(dry.contains("to convert ") && dry.contains(converting), "{dry}");
    assert!(dry.contains("30 training and 16 validation images"), "{dry}");
    assert!(kept(&place, "cache").is_empty(), "a dry run writes nothing");
    let first = said(&place, &[]);
    assert!(first.contains("converting ") && first.contains(converting), "{first}");
    let packs = kept(&place, "cache");
    assert!(packs.len() == 1 && packs[0].to_str().unwrap().ends_with("-parquet.pack"), "{packs:?}");
    for arguments in [&["--dry-run"][..], &[]] {
        assert!(!said(&place, arguments).contains("convert"), "the pack is used");
    }
    // Not even a footer is read again.
    let path = place.path("hub/train-00000-of-00002.parquet");
    let (whole, time) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
    fs::write(&path, vec![0; whole.len()]).unwrap();
    File::open(&path).unwrap().set_modified(time).unwrap();
    said(&place, &[]);
    fs::write(&path, whole).unwrap();
    File::open(&path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(30)).unwrap();
    let killed = format!(".{}.x", packs[0].file_name().unwrap().to_str().unwrap());
    fs::write(packs[0].with_file_name(killed), "of a process that was killed").unwrap();
    assert!(said(&place, &[]).contains("converting "));
    assert_eq!(kept(&place, "cache"), packs, "the new pack replaces the old one, and nothing is left");
    assert!(said(&place, &["data.corrupt=skip"]).contains("converting "), "another set of images");
    assert_eq!(kept(&place, "cache").len(), 2);
}

#[test]
fn one_of_many_processes_converts_and_all_train_the_same() {
    let place = place();
    let start = |name: &str| {
        let mut command = place.small(name, &HUB);
        command.env("XDG_CACHE_HOME", place.path("cache")).stdout(Stdio::piped()).spawn().unwrap()
    };
    let children = ["a", "b", "c"].map(start);
    let said = children.map(|child| succeeded(&child.wait_with_output().unwrap()));
    assert_eq!(said.iter().filter(|said| said.contains("converting ")).count(), 1, "{said:?}");
    assert_eq!(kept(&place, "cache").len(), 1);
    for name in ["b", "c"] {
        assert_eq!(place.run(name).tensors(), place.run("a").tensors());
    }
}

#[test]
fn a_cache_without_room_is_one_line_that_names_other_places() {
    let place = place();
    let Some(disk) = SmallDisk::mount(&place.path("disk"), 16) else {
        return skip("only a privileged user can mount a small disk");
    };
    let line = refused(&run(&place, "disk", &[]).output().unwrap(), 1);
    for part in ["-parquet.pack': No space left", "make room there", "XDG_CACHE_HOME", "train pack"] {
        assert!(line.contains(part), "'{part}' is not in {line}");
    }
    assert!(kept(&place, "disk").is_empty());
    drop(disk);
}

#[test]
fn a_damaged_image_is_named_by_its_file_and_its_pack() {
    let place = place();
    said(&place, &[]);
    let pack = kept(&place, "cache").remove(0);
    let mut bytes = fs::read(&pack).unwrap();
    bytes[100..200].fill(0);
    fs::write(&pack, bytes).unwrap();
    let output = run(&place, "cache", &["--max-steps=4"]).output().unwrap();
    let lines = errors(&output).join(" ");
    assert!(lines.contains("jpg' in 'hub/train-0000") && lines.contains("-parquet.pack'; remove that file"), "{lines}");
}

#[test]
fn a_pack_is_written_by_hand_from_columns_of_any_name() {
    let place = place();
    let pack =
        |arguments: &[&str]| place.bare(&[&["pack", "hub", "--output=hub.pack"], arguments].concat()).output().unwrap();
    let said = succeeded(&pack(&["--image-column=image", "--label-column=label"]));
    assert!(said.contains("packing     hub: 46 images") && said.contains("hub.pack: 46 images"), "{said}");
    let whole = fs::metadata(place.path("hub.pack")).unwrap().len();
    assert!(succeeded(&pack(&["--side=8", "--jpeg=50%"])).contains("46 images"));
    assert!(fs::metadata(place.path("hub.pack")).unwrap().len() < whole);
    for (arguments, part) in [
        (
            &["pack", "hub", "--output=new.pack", "--image-column=photo"][..],
            "no column of pictures (photo.bytes, photo)",
        ),
        (&["pack", "folder", "--output=new.pack", "--label-column=kind"], "--label-column is for Parquet files"),
    ] {
        let output = place.bare(arguments).output().unwrap();
        assert!(!output.status.success() && errors(&output).join(" ").contains(part), "{:?}", errors(&output));
    }
    assert!(!place.path("new.pack").exists());
}
