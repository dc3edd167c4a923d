//! Bad input from the outside: one line that says what, where, why and what to do; the right exit code; no panic, and
//! nothing half-written.

use std::fs;
#[cfg(all(feature = "tch", target_os = "linux"))]
use std::process::{Command, Stdio};

use crate::command::{self, Workplace, errors, photographs};

/// Runs a command that must be refused: exit `code`, one line with all of `parts`, and no change on the disk.
#[track_caller]
fn refused(place: &Workplace, arguments: &[&str], code: i32, parts: &[&str]) {
    let before = place.snapshot();
    let output = place.bare(arguments).output().unwrap();
    let line = command::refused(&output, code);
    for part in parts.iter().chain(&["train: "]) {
        assert!(line.contains(part), "{arguments:?}: '{part}' is not in '{line}'");
    }
    assert!(!line.contains("panicked") && !line.ends_with('.'), "{line}");
    assert!(place.snapshot() == before, "{arguments:?} left something behind");
}

const TINY: [&str; 5] = ["data=synthetic", "data.train_size=8", "data.val_size=4", "--width=2", "--batch-size=4"];

#[track_caller]
fn tiny_refused(place: &Workplace, arguments: &[&str], code: i32, parts: &[&str]) {
    refused(place, &[&TINY, arguments].concat(), code, parts);
}

/// A folder of images that are not photographs.
const SMALL_IMAGES: [&str; 3] = ["--data=folder", "--image-size=32", "--stem=cifar"];

#[test]
fn folders_that_are_no_data_set_are_refused_by_file() {
    let place = Workplace::new();
    photographs(&place.path("data"), 8);
    let start = ["--data=folder", "--epochs=1"];
    fs::write(place.path("data/train/cat/two.jpg"), "not a picture").unwrap();
    refused(&place, &start, 1, &["two.jpg' is not a JPEG", "replace or remove it"]);
    fs::remove_file(place.path("data/train/cat/two.jpg")).unwrap();
    fs::create_dir(place.path("data/train/eel")).unwrap();
    refused(&place, &start, 1, &["train/eel", "at least one image"]);
}

/// The pixels of a picture that no JPEG makes small.
fn noisy(x: u32, y: u32) -> image::Rgb<u8> {
    image::Rgb([x.wrapping_mul(97) ^ y.wrapping_mul(61), x * y, x + 31 * y].map(|it| it as u8))
}

#[test]
fn images_that_are_cut_off_are_refused_by_name_before_the_first_step() {
    let place = Workplace::new();
    photographs(&place.path("data"), 8);
    let path = place.path("data/train/cat/two.jpg");
    image::RgbImage::from_fn(40, 40, noisy).save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    for (cache, length) in [("--cache-mb=4096", whole.len() * 8 / 9), ("--cache-mb=0", whole.len() / 3)] {
        fs::write(&path, &whole[..length]).unwrap();
        let reason = format!("is cut off: the JPEG ends after {length} bytes");
        let parts = ["cat/two.jpg' ", &reason, "replace or remove it"];
        refused(&place, &["--data=folder", "--epochs=1", cache], 1, &parts);
    }
}

#[test]
fn an_image_that_turns_out_damaged_in_the_middle_ends_the_run_with_its_name() {
    let place = Workplace::new();
    photographs(&place.path("data"), 8);
    // It begins and ends as it should.
    fs::write(
        place.path("data/val/dog/two.jpg"),
        [b"\xff\xd8\xff\xe0\0\x10JFIF".as_slice(), &[0; 64], b"\xff\xd9"].concat(),
    )
    .unwrap();
    let output = place
        .bare(&[&SMALL_IMAGES[..], &["--cache-mb=0", "--epochs=1", "--width=2", "--progress=plain"]].concat())
        .output()
        .unwrap();
    let line = command::refused(&output, 1);
    assert!(line.contains("val/dog/two.jpg' is not a JPEG that"), "{line}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("step"), "training had begun");
}

#[test]
fn what_lies_in_class_folders_and_is_not_read_is_counted_and_named() {
    let place = Workplace::new();
    photographs(&place.path("data"), 8);
    let train = place.path("data/train");
    fs::write(train.join("cat/loop.gif"), "GIF89a").unwrap();
    std::os::unix::fs::symlink("nowhere.jpg", train.join("cat/link.jpg")).unwrap();
    fs::create_dir(train.join("dog/more")).unwrap();
    fs::write(train.join("list.txt"), "").unwrap();
    fs::write(train.join("dog/.hidden"), "").unwrap();
    fs::write(place.path("data/val/dog/one.tiff"), "").unwrap();
    let output = place.bare(&[&SMALL_IMAGES[..], &["--dry-run", "--width=2"]].concat()).output().unwrap();
    let lines = errors(&output);
    let read = "; only .jpg, .jpeg, .png, .bmp and .webp files in class folders are read";
    assert_eq!(
        (output.status.code(), lines),
        (
            Some(0),
            vec![
                format!(
                    "train: warning: 4 entries of 'data/train' left out: 'list.txt', 'cat/link.jpg' (a dead link), \
                     'cat/loop.gif' and 1 more{read}"
                ),
                format!("train: warning: 1 entry of 'data/val' left out: 'dog/one.tiff'{read}"),
            ]
        )
    );
    fs::rename(train.join("cat/loop.gif"), train.join("dog/loop.gif")).unwrap();
    fs::remove_file(train.join("dog/one.png")).unwrap();
    refused(&place, &["--data=folder", "--epochs=1"], 1, &["train/dog', though", "loop.gif' lies there"]);
}

#[test]
fn a_run_that_the_machine_has_no_memory_for_is_warned_of_with_both_numbers() {
    let place = Workplace::new();
    let large = ["data=synthetic", "data.train_size=4000", "data.val_size=4", "--image-size=1024", "--cache-mb=0"];
    let batch = ["--stem=cifar", "--batch-size=4000", "--width=64"];
    let warns = |more: &[&str]| {
        let output = place.bare(&[&large[..], &batch[..], more].concat()).output().unwrap();
        let lines = errors(&output);
        let parts = ["warning: training takes about ", " GiB of memory", "this machine has ", "--accumulation-steps"];
        for part in parts {
            assert!(lines[0].contains(part), "{lines:?}");
        }
        (output.status.code(), lines.len())
    };
    assert_eq!(warns(&["--dry-run"]), (Some(0), 1));
    // Of a real run, the warning comes before anything else is looked at.
    assert_eq!(warns(&["--checkpoint=nowhere/best.pth"]), (Some(2), 2));
    let output = place.bare(&[&large[..], &["--dry-run", "--batch-size=1", "--width=2"]].concat()).output().unwrap();
    assert_eq!((output.status.code(), errors(&output)), (Some(0), vec![]));
}

#[test]
fn a_single_file_is_not_written_to_a_directory_that_does_not_exist() {
    let place = Workplace::new();
    place.train("run", &["--epochs=1"]);
    let nowhere = ["no directory 'no/such'", "give another --output"];
    refused(&place, &["export", "--checkpoint=run", "--to=pth", "--output=no/such/model.pth"], 2, &nowhere);
    refused(&place, &["report", "run", "--output=no/such/report.html"], 2, &nowhere);
}

#[test]
fn places_that_cannot_be_written_are_refused_before_the_first_step() {
    let place = Workplace::new();
    fs::write(place.path("file"), "x").unwrap();
    tiny_refused(&place, &["--output-dir=file/run"], 2, &["'file/run'", "give another --output-dir"]);
    tiny_refused(&place, &["--output-dir=file"], 2, &["'file'", "give another --output-dir"]);
    tiny_refused(&place, &["--checkpoint=file/best.pth"], 2, &["'file'", "give another --checkpoint"]);
    tiny_refused(
        &place,
        &["--checkpoint=no/such/best.pth"],
        2,
        &["no directory 'no/such'", "give another --checkpoint"],
    );
    fs::create_dir(place.path("folder.pth")).unwrap();
    tiny_refused(&place, &["--checkpoint=folder.pth"], 2, &["'folder.pth'", "give another --checkpoint"]);
    for name in [".", "best", "best.bin", "best.pth.tar", ".pth"] {
        let quoted = format!("'{name}'");
        let parts = ["must end in .safetensors, .pth, .pt or .onnx", &quoted, "give another --checkpoint"];
        tiny_refused(&place, &[&format!("--checkpoint={name}")], 2, &parts);
    }
    fs::write(place.path("runs"), "x").unwrap();
    tiny_refused(&place, &[], 2, &["'runs'", "give another --output-dir"]);
}

#[test]
fn devices_that_do_not_exist_are_refused() {
    let place = Workplace::new();
    tiny_refused(&place, &["--gpu-ids=7"], 2, &["'7'", "--gpu-ids"]);
    tiny_refused(&place, &["--gpu-ids=-1"], 2, &["'-1'", "--gpu-ids 0"]);
}

#[test]
fn devices_that_record_no_steps_are_refused() {
    let place = Workplace::new();
    let refused = |backend: &str, parts: &[&str]| tiny_refused(&place, &[backend, "--cuda-graph=on"], 2, parts);
    refused("--backend=flex", &["takes the backend tch", "train with --cuda-graph off"]);
    #[cfg(feature = "tch")]
    if kiln_ops::cuda_devices() == 0 {
        refused("--backend=tch", &["LibTorch finds no CUDA device", "train with --cuda-graph off"]);
    }
    tiny_refused(&place, &["--cuda-graph=on", "--mixup=0.2"], 2, &["mixed images", "--cuda-graph off"]);
}

#[test]
fn cudnn_takes_the_backend_cuda() {
    let place = Workplace::new();
    tiny_refused(&place, &["--backend=flex", "--cudnn"], 2, &["takes the backend cuda", "leave out --cudnn"]);
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_backend_that_was_not_built_is_refused_with_the_command_that_builds_it() {
    tiny_refused(&Workplace::new(), &["--backend=cuda"], 2, &["'cuda'", "cargo build --release --features cuda"]);
}

#[test]
fn settings_that_do_not_suit_the_run_are_refused() {
    let place = Workplace::new();
    tiny_refused(&place, &["--batch-size=100", "data.drop_last=true"], 2, &["'100'", "lower --batch-size"]);
    let needed = if cfg!(feature = "tui") {
        ["needs a foreground terminal", "--progress plain"]
    } else {
        ["--features tui", "--progress bar"]
    };
    tiny_refused(&place, &["--progress=tui"], 2, &needed);
    tiny_refused(&place, &["model.num_classes=3"], 2, &["'3'", "10 classes"]);
}

#[test]
fn a_command_line_is_refused_with_all_its_faults_at_once() {
    let place = Workplace::new();
    let arguments = ["evaluate", "--chekpoint", "run", "--batch-size=x", "--epochs=3"];
    let output = place.bare(&arguments).output().unwrap();
    let lines = errors(&output);
    let expected =
        ["'--chekpoint'; did you mean '--checkpoint run'?", "'--epochs'; it is an option for training only", "got 'x'"];
    assert_eq!((output.status.code(), lines.len()), (Some(2), expected.len()), "{lines:#?}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.starts_with("train: ") && line.contains(part), "'{part}' is not in '{line}'");
    }
    assert!(output.stdout.is_empty() && place.snapshot().is_empty(), "it left something behind");
}

#[test]
fn an_evaluation_without_a_sound_checkpoint_is_refused() {
    let place = Workplace::new();
    let evaluate = |path: &str, code: i32, parts: &[&str]| {
        refused(&place, &["evaluate", "--checkpoint", path], code, parts);
    };
    evaluate("nowhere", 1, &["'nowhere' does not exist", "--checkpoint"]);
    refused(&place, &["evaluate"], 1, &["'runs/last' does not exist", "--checkpoint"]);
    fs::create_dir(place.path("empty")).unwrap();
    evaluate("empty", 1, &["'empty' holds no manifest.json"]);
    fs::write(place.path("text.safetensors"), "hello").unwrap();
    evaluate("text.safetensors", 1, &["'text.safetensors' is not a readable safetensors file"]);
    place.train("run", &["--epochs=2"]);
    for name in ["config.toml", "model.safetensors", "manifest.json"] {
        let path = place.run("run").checkpoint("latest").join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        evaluate("run/checkpoints/latest", 1, &[name, "damaged", "use '", "instead, which is intact"]);
        fs::write(&path, whole).unwrap();
    }
}

#[test]
#[cfg(all(feature = "tch", target_os = "linux"))]
fn a_batch_that_memory_does_not_hold_ends_with_the_remedy_and_without_a_stack() {
    let place = Workplace::new();
    // The output of the first convolution takes 2 GiB.
    let mut train = Command::new("sh");
    train.args(["-c", "ulimit -v 3000000 && exec \"$0\" \"$@\""]).arg(command::train());
    train.args(["--backend=tch", "--batch-size=8192", "data=synthetic", "data.train_size=8192", "data.val_size=4"]);
    train.args(["--threads=1", "--max-steps=1", "--progress=none"]);
    let output = train.current_dir(place.path("")).stdin(Stdio::null()).output().unwrap();
    // A warning about this machine's memory may come before.
    let lines = errors(&output);
    let last = lines.last().unwrap();
    assert_eq!((output.status.code(), lines.len() < 3), (Some(1), true), "{lines:?}");
    for part in
        ["replica 0 panicked at step 1", "can't allocate memory", "lower --batch-size", "'train find batch-size'"]
    {
        assert!(last.contains(part), "'{part}' is not in '{}'", last);
    }
    assert!(!last.contains("frame #") && last.len() < 700, "{}", last);
}
