//! Where images are stored is not part of an experiment: a folder, shards, a pack and Parquet files give one SHA-256 of
//! the final weights, and a run may go on with any of them.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use image::{Rgb, RgbImage};
use tar::{Builder, Header};

use crate::command::{IMAGES, STEPS_PER_EPOCH, Workplace, errors, kill, refused, succeeded, until};

/// What `--data` and `--data-dir` say.
const SOURCES: &[[&str; 2]] = &[
    ["--data=folder", "--data-dir=folder"],
    ["--data=webdataset", "--data-dir=shards/{train-{0..2},val-0}.tar"],
    ["--data=pack", "--data-dir=images.pack"],
    #[cfg(feature = "parquet")]
    ["--data=parquet", "--data-dir=hub"],
];
const EPOCHS: usize = 2;

fn picture(number: usize) -> RgbImage {
    let wave = |at: f64| (127.5 + 127.0 * at.sin()) as u8;
    RgbImage::from_fn(30 + number as u32 % 7, 24, |x, y| {
        let (x, y, n) = (f64::from(x), f64::from(y), number as f64);
        Rgb([wave(0.3 * x + n), wave(0.2 * y * (1.0 + n / 9.0)), wave(0.01 * x * y - n)])
    })
}

/// The images of [`IMAGES`] and sixteen more for validation, stored in every way.
pub fn stored(place: &Workplace) {
    fs::create_dir_all(place.path("shards")).unwrap();
    let tar = |name: &str| Builder::new(File::create(place.path(&format!("shards/{name}.tar"))).unwrap());
    let (mut training, mut validation) = ([tar("train-0"), tar("train-1"), tar("train-2")], tar("val-0"));
    for number in 0..IMAGES + 16 {
        let (class, split) = (number % 3, if number < IMAGES { "train" } else { "val" });
        let path = place.path(&format!("folder/{split}/class{class}/{number:02}.jpg"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        picture(number).save(&path).unwrap();
        let tar = if number < IMAGES { &mut training[number * 3 / IMAGES] } else { &mut validation };
        append(tar, &format!("{number:02}.jpg"), &fs::read(&path).unwrap());
        append(tar, &format!("{number:02}.cls"), class.to_string().as_bytes());
    }
    training.into_iter().chain([validation]).for_each(|tar| drop(tar.into_inner().unwrap()));
    fs::write(place.path("shards/classes.txt"), "class0\nclass1\nclass2\n").unwrap();
    let said = succeeded(&place.bare(&["pack", "shards", "--output=images.pack"]).output().unwrap());
    assert!(said.contains("46 images") && said.contains("--data pack --data-dir images.pack"), "{said}");
    #[cfg(feature = "parquet")]
    hub(place);
}

/// The images as Parquet files: the last of training come first.
#[cfg(feature = "parquet")]
fn hub(place: &Workplace) {
    use crate::parquet_files::{Row, write};
    use parquet::file::properties::WriterProperties;

    fs::create_dir_all(place.path("hub")).unwrap();
    let files = [
        ("train-00000-of-00002", 20..IMAGES),
        ("train-00001-of-00002", 0..20),
        ("test-00000-of-00001", IMAGES..IMAGES + 16),
    ];
    for (file, numbers) in files {
        let split = if file.starts_with("train") { "train" } else { "val" };
        let name = |number: usize| format!("class{}/{number:02}.jpg", number % 3);
        let images: Vec<(Vec<u8>, String, i64)> = numbers
            .map(|number| {
                let bytes = fs::read(place.path(&format!("folder/{split}/{}", name(number)))).unwrap();
                (bytes, name(number), (number % 3) as i64)
            })
            .collect();
        let rows: Vec<Row> =
            images.iter().map(|(bytes, name, label)| (Some(&bytes[..]), Some(&name[..]), Some(*label))).collect();
        let path = place.path(&format!("hub/{file}.parquet"));
        write(&path, &["class0", "class1", "class2"], &rows, WriterProperties::builder());
    }
}

pub fn append(tar: &mut Builder<File>, name: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, content).unwrap();
}

/// A training on a source; every second one decodes its images again at every use.
fn training<'a>(world: &'a [&'a str], source: usize) -> Vec<&'a str> {
    let cache = if source.is_multiple_of(2) { "--cache-mb=0" } else { "--cache-mb=64" };
    [&SOURCES[source % SOURCES.len()][..], world, &["--image-size=16", "--epochs=2", cache]].concat()
}

#[test]
fn the_weights_are_the_same_from_every_source_and_across_a_kill_and_a_change_of_source() {
    let place = Workplace::new();
    stored(&place);
    for (at, world) in [
        ["--world-size=1", "--batch-size=8"],
        ["--world-size=2", "--batch-size=4"],
        ["--world-size=4", "--batch-size=2"],
    ]
    .iter()
    .enumerate()
    {
        let name = |kind: &str| format!("{kind}-{at}");
        place.train(&name("calm"), &training(world, 0));
        let calm = place.run(&name("calm"));
        for source in 1..SOURCES.len() {
            place.train(&name(&source.to_string()), &training(world, source));
            place.run(&name(&source.to_string())).equals(&calm, EPOCHS);
        }
        // Killed after a checkpoint, in the middle of the first epoch, and taken up with the next source.
        let moved = place.run(&name("moved"));
        let mut child = place
            .small(&name("moved"), &training(world, at))
            .arg("--checkpoint-every=1steps")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        until("a checkpoint is there", || moved.has_checkpoint() || child.try_wait().unwrap().is_some());
        kill(&mut child);
        assert!(moved.latest_step() < EPOCHS * STEPS_PER_EPOCH, "the run was over before it was killed");
        place.train(&name("moved"), &[&training(world, at + 1)[..], &["--resume"]].concat());
        moved.equals(&calm, EPOCHS);
    }
}

#[test]
fn an_order_by_windows_is_the_same_on_any_devices_and_part_of_a_run() {
    let place = Workplace::new();
    stored(&place);
    let window = ["data.order=window", "data.window=2"];
    let run = |name: &str, more: &[&str]| place.small(name, &[&training(&[], 1)[..], &window, more].concat());
    succeeded(&run("calm", &[]).output().unwrap());
    let calm = place.run("calm");
    calm.saw_every_image_once(EPOCHS);
    succeeded(&run("moved", &["--max-steps=3"]).output().unwrap());
    for (arguments, part) in [
        (&["data.order=global"][..], "data.order"),
        (&["data.window=1"], "data.window"),
        (&["--data-dir=shards/{train-{2,1,0},val-0}.tar"], "images: saved fingerprint"),
    ] {
        let lines = errors(&run("moved", &[arguments, &["--resume"]].concat()).output().unwrap());
        assert!(lines.len() == 1 && lines[0].contains("another experiment") && lines[0].contains(part), "{lines:?}");
    }
    succeeded(&run("moved", &["--resume"]).output().unwrap());
    place.run("moved").equals(&calm, EPOCHS);
    place.train("global", &training(&[], 1));
    assert_ne!(place.run("global").steps(), calm.steps());
}

#[test]
fn other_images_are_refused_whatever_their_source() {
    let place = Workplace::new();
    stored(&place);
    place.train("run", &[&training(&[], 0)[..], &["--max-steps=2"]].concat());
    fs::remove_file(place.path("folder/train/class0/00.jpg")).unwrap();
    succeeded(&place.bare(&["pack", "folder", "--output=images.pack"]).output().unwrap());
    let line = refused(&place.small("run", &[&training(&[], 2)[..], &["--resume"]].concat()).output().unwrap(), 2);
    assert!(line.contains("images: saved fingerprint") && !line.contains("data.source"), "{line}");
}

#[test]
fn an_index_is_kept_in_the_cache_if_there_is_no_place_beside_the_data() {
    let place = Workplace::new();
    stored(&place);
    // A folder with something in it is in the way.
    fs::create_dir_all(place.path("shards/.kiln-webdataset.index/taken")).unwrap();
    for entry in fs::read_dir(place.path("shards")).unwrap() {
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        File::open(entry.unwrap().path()).unwrap().set_modified(old).unwrap();
    }
    let inspect = |cache: &Path| {
        let mut command = place.small("", &[&training(&[], 1)[..], &["--dry-run"]].concat());
        succeeded(&command.env("XDG_CACHE_HOME", cache).output().unwrap())
    };
    let said = inspect(&place.path("cache"));
    assert!(
        said.contains("webdataset in shards/{train-{0..2},val-0}.tar: 30 training and 16 validation images"),
        "{said}"
    );
    let kept: Vec<_> =
        fs::read_dir(place.path("cache/kiln")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(kept.len() == 1 && kept[0].to_str().unwrap().ends_with("-webdataset.index"), "{kept:?}");
    assert_eq!(inspect(&place.path("cache")), said);
    fs::write(place.path("file"), "").unwrap();
    assert_eq!(inspect(&place.path("file")), said, "without a cache the index is made each time");
}

#[test]
fn damaged_images_are_counted_in_the_log() {
    let place = Workplace::new();
    stored(&place);
    let victim = place.path("folder/train/class0/03.jpg");
    let whole = fs::read(&victim).unwrap();
    fs::write(&victim, &whole[..whole.len() / 2]).unwrap();
    let arguments = training(&[], 0);
    let output = place.small("run", &arguments).output().unwrap();
    let line = refused(&output, 1);
    for part in ["03.jpg' is cut off", "data.corrupt=skip"] {
        assert!(line.contains(part), "{line}");
    }
    let output = place.small("run", &[&arguments[..], &["data.corrupt=skip"]].concat()).output().unwrap();
    let said = succeeded(&output);
    let lines = errors(&output);
    assert!(said.contains("29 training and 16 validation images"), "{said}");
    assert!(said.contains("left out    1 damaged image"), "{said}");
    let page = fs::read_to_string(place.path("run/report.html")).unwrap();
    assert!(page.contains("Left out") && page.contains("damaged images"), "the report counts them");
    assert!(
        lines[0].contains("1 damaged image left out by data.corrupt=skip: 'folder/train/class0/03.jpg'"),
        "{lines:?}"
    );
    let mistakes = [
        (&["pack", "folder"][..], "--output"),
        (&["pack", "folder", "--output=new.pack", "--jpeg=10"], "a share from 0% to 100%"),
        (&["pack", "folder", "--output=new.pack", "--jpeg=101%"], "a share from 0% to 100%"),
        (&["pack", "folder", "--output=new.pack", "--side=0"], "1 to 65535"),
        (&["pack", "folder", "--output=new.pack"], "03.jpg' is cut off"),
        (&["pack", "none", "--output=new.pack"], "none/train"),
    ];
    for (arguments, part) in mistakes {
        let output = place.bare(arguments).output().unwrap();
        assert!(!output.status.success() && errors(&output).join(" ").contains(part), "{:?}", errors(&output));
    }
    assert!(!place.path("new.pack").exists());
    let packing = ["pack", "folder", "--output=new.pack", "--side=20", "--jpeg=50%", "--skip-corrupt"];
    let output = place.bare(&packing).output().unwrap();
    assert!(succeeded(&output).contains("45 images"));
    assert!(errors(&output).iter().any(|line| line.contains("damaged image")), "{:?}", errors(&output));
}

#[test]
fn a_pack_without_an_image_is_not_written_nor_one_in_the_place_of_a_pipe() {
    let place = Workplace::new();
    for split in ["train", "val"] {
        fs::create_dir_all(place.path(&format!("broken/{split}/it"))).unwrap();
        fs::write(place.path(&format!("broken/{split}/it/a.jpg")), b"\xff\xd8").unwrap();
    }
    let pack = |output: &str| place.bare(&["pack", "broken", "--skip-corrupt", output]).output().unwrap();
    let output = pack("--output=new.pack");
    let line = refused(&output, 1);
    assert!(line.contains("'broken' has no image to pack") && line.contains("damaged"), "{line}");
    assert!(!place.path("new.pack").exists());
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let output = pack("--output=pipe");
    assert!(errors(&output)[0].contains("'pipe': it is a device or a pipe, which would be replaced"), "{output:?}");
    assert!(!place.path("pipe").is_file());
}

#[test]
fn settings_that_have_no_effect_on_a_source_are_refused() {
    let place = Workplace::new();
    stored(&place);
    succeeded(&place.bare(&["pack", "folder", "--output=upright.pack", "--apply-exif"]).output().unwrap());
    let upright = ["--data=pack", "--data-dir=upright.pack"];
    let cases = [
        (&["data=synthetic", "data.exif=apply"][..], "exif works with data folder, webdataset, parquet or pack only"),
        (&["data=synthetic", "data.decode=part"], "decode works with data folder, webdataset, parquet or pack only"),
        (&["data=synthetic", "data.corrupt=skip"], "corrupt=skip works with data folder, webdataset or parquet only"),
        (&["--data=pack", "--data-dir=images.pack", "data.corrupt=skip"], "train pack has --skip-corrupt"),
        (&upright, "was encoded with data.exif=apply, but data.exif is 'ignore'"),
        (&upright, "give data.exif=apply, or write the pack again without --apply-exif"),
    ];
    for (arguments, part) in cases {
        let line = refused(&place.bare(&[arguments, &["--dry-run"]].concat()).output().unwrap(), 2);
        assert!(line.contains(part), "{line}");
    }
    succeeded(&place.bare(&[&upright[..], &["--dry-run", "data.exif=apply"]].concat()).output().unwrap());
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_names_the_feature() {
    let place = Workplace::new();
    fs::create_dir(place.path("hub")).unwrap();
    fs::write(place.path("hub/train.parquet"), "PAR1").unwrap();
    let packing = ["pack", "hub", "--output=images.pack"];
    for arguments in [&["--data=parquet", "--data-dir=hub"][..], &packing] {
        let line = refused(&place.bare(arguments).output().unwrap(), 2);
        assert!(line.contains("parquet") && line.contains("build with --features parquet"), "{line}");
    }
}
