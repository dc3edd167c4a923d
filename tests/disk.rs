//! Disks without room.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{Workplace, errors, refused};
use crate::skipped::skip;

/// A file system of so many KiB at `path`, until it is dropped; none where mounting is not allowed.
pub struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    pub fn mount(path: &Path, kib: usize) -> Option<Self> {
        fs::create_dir(path).unwrap();
        let size = format!("size={kib}k");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(path.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[test]
fn a_disk_without_room_for_a_checkpoint_is_named_before_training() {
    let place = Workplace::new();
    let Some(disk) = SmallDisk::mount(&place.path("disk"), 256) else {
        return skip("only a privileged user can mount a small disk");
    };
    let dry_run = |run: &str| errors(&place.small(run, &["--dry-run", "--width=8"]).output().unwrap());
    let lines = dry_run("disk/not/yet/run");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("a checkpoint takes about 1 MiB (estimate), but its disk has 0 MiB left"), "{lines:?}");
    assert!(dry_run("run").is_empty());
    drop(disk);
}

#[test]
fn a_full_disk_ends_the_run_and_keeps_the_last_checkpoint() {
    let place = Workplace::new();
    // Room for one checkpoint of this network and a part of the next.
    let Some(disk) = SmallDisk::mount(&place.path("disk"), 640) else {
        return skip("only a privileged user can mount a small disk");
    };
    let line = refused(&place.small("disk/run", &["--epochs=3", "--keep-last=9"]).output().unwrap(), 1);
    assert!(line.contains("No space left") && line.contains("go on with --resume,"), "{line}");
    let run = place.run("disk/run");
    assert_eq!(run.latest_step(), 2, "the first checkpoint is what is left");
    let names = fs::read_dir(run.checkpoint("")).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.ends_with(".tmp")), "half a checkpoint is left");
    drop(disk);
}

#[test]
fn a_full_disk_is_no_reason_to_resume_what_is_no_run() {
    let place = Workplace::new();
    place.train("run", &["--max-steps=1"]);
    let noise = |x: u32, y: u32| image::Rgb([(x * y) ^ (x << 3), x * 97 + y, y * y + 31 * x].map(|it| it as u8));
    for class in ["train/cat", "train/dog", "val/cat", "val/dog"] {
        fs::create_dir_all(place.path("photos").join(class)).unwrap();
        image::RgbImage::from_fn(160, 160, noise).save(place.path("photos").join(class).join("one.png")).unwrap();
    }
    let Some(disk) = SmallDisk::mount(&place.path("disk"), 64) else {
        return skip("only a privileged user can mount a small disk");
    };
    for line in [
        &["export", "--checkpoint=run", "--to=safetensors", "--output=disk/model.safetensors"][..],
        &["pack", "photos", "--output=disk/photos.pack"],
    ] {
        let line = refused(&place.bare(line).output().unwrap(), 1);
        assert!(line.contains("No space left") && line.ends_with("; make room there"), "{line}");
    }
    drop(disk);
}
