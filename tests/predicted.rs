//! Questions about many images at once: every one that can be read is answered, every other is a line, and names are
//! shown whatever bytes they hold.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::command::{Workplace, errors, succeeded};

/// A small trained network, and a folder of three images, one deeper.
fn trained() -> Workplace {
    let place = Workplace::new();
    place.train("run", &["--epochs=1"]);
    for name in ["photos/b.png", "photos/a/c.png", "photos/Z.PNG", "photos/.hidden.png"] {
        picture(&place.path(name));
    }
    fs::write(place.path("photos/notes.txt"), "text").unwrap();
    place
}

fn picture(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(8, 8).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    fs::write(path, bytes.into_inner()).unwrap();
}

fn ask(place: &Workplace, arguments: &[impl AsRef<OsStr>]) -> Output {
    place.bare(&["predict", "--checkpoint=run", "--top=1"]).args(arguments).output().unwrap()
}

fn names(output: &Output) -> Vec<String> {
    let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
    answers.as_array().unwrap().iter().map(|answer| answer["image"].as_str().unwrap().into()).collect()
}

/// Standard error but the line that names the weights.
fn faults(output: &Output) -> Vec<String> {
    errors(output).into_iter().filter(|line| !line.contains("weights of")).collect()
}

#[test]
fn what_cannot_be_read_is_a_line_and_everything_else_is_answered() {
    let place = trained();
    fs::write(place.path("text.jpg"), "no picture").unwrap();
    let asked = ["text.jpg", "photos/b.png", "missing.png", "photos/a/c.png"];
    let output = ask(&place, &[&["--json"], &asked[..]].concat());
    assert_eq!((output.status.code(), names(&output)), (Some(1), vec!["photos/b.png".into(), "photos/a/c.png".into()]));
    let lines = faults(&output);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("'text.jpg' is not a JPEG") && lines[1].contains("cannot read 'missing.png'"),
        "{lines:?}"
    );
    let none = ask(&place, &["--json", "text.jpg"]);
    assert_eq!((none.status.code(), names(&none).len(), faults(&none).len()), (Some(1), 0, 1));
    assert!(ask(&place, &["text.jpg"]).stdout.is_empty());
}

#[test]
fn a_folder_is_all_its_images_sorted_and_a_dash_is_a_list_of_names() {
    let place = trained();
    let output = ask(&place, &["--json", "photos"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", errors(&output));
    assert_eq!(names(&output), ["photos/Z.PNG", "photos/a/c.png", "photos/b.png"]);
    fs::create_dir(place.path("empty")).unwrap();
    std::os::unix::fs::symlink(place.path("photos"), place.path("empty/loop")).unwrap();
    let output = ask(&place, &["--json", "empty", "photos/b.png"]);
    assert_eq!((output.status.code(), names(&output)), (Some(1), vec!["photos/b.png".into()]));
    assert!(faults(&output)[0].contains("no image in 'empty'"), "{:?}", errors(&output));
    for list in ["photos/b.png\nphotos/a\n\n", "photos/b.png\0photos/a\0"] {
        let mut command = place.bare(&["predict", "--checkpoint=run", "--json", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), names(&output)),
            (Some(0), vec!["photos/b.png".into(), "photos/a/c.png".into()])
        );
    }
}

#[test]
fn answers_in_csv_are_those_in_json() {
    let place = trained();
    let ask = |form: &str| place.bare(&["predict", "--checkpoint=run", "--top=2", form, "photos"]).output().unwrap();
    let (json, csv) = (succeeded(&ask("--json")), succeeded(&ask("--csv")));
    let answers: Value = serde_json::from_str(&json).unwrap();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    assert_eq!(reader.headers().unwrap(), vec!["image", "rank", "class", "index", "probability"]);
    let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.unwrap()).collect();
    assert_eq!(rows.len(), 6);
    for (at, row) in rows.iter().enumerate() {
        let (answer, guess) = (&answers[at / 2], &answers[at / 2]["predictions"][at % 2]);
        assert_eq!((&row[0], row[1].parse()), (answer["image"].as_str().unwrap(), Ok(at % 2 + 1)));
        assert_eq!((&row[2], row[3].parse()), (guess["class"].as_str().unwrap(), Ok(guess["index"].as_u64().unwrap())));
        assert_eq!(row[4].parse::<f32>().unwrap(), guess["probability"].as_f64().unwrap() as f32);
    }
    let both = place.bare(&["predict", "--checkpoint=run", "--json", "--csv", "photos"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_name_that_is_not_utf_8_is_shown_everywhere_and_loses_nothing() {
    let place = trained();
    let name = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let [one, other, broken] = [b"caf\xe9.png".as_slice(), b"caf\xe8.png", b"\xff.png"].map(name);
    [&one, &other].iter().for_each(|name| picture(&place.path("").join(name)));
    fs::write(place.path("").join(&broken), "no picture").unwrap();
    let all = [one.as_os_str(), other.as_os_str(), broken.as_os_str(), OsStr::new("photos/b.png")];
    for form in ["--json", "--csv", "--exif=ignore"] {
        let output = ask(&place, &[&[OsStr::new(form)], &all[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{:?}", errors(&output));
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let shown =
            if form == "--json" { [r"caf\\xe9.png", r"caf\\xe8.png"] } else { [r"caf\xe9.png", r"caf\xe8.png"] };
        assert!(shown.iter().chain(&["photos/b.png"]).all(|name| text.contains(name)), "{text}");
        assert!(faults(&output)[0].contains(r"'\xff.png' is not a PNG"), "{:?}", errors(&output));
    }
    // And of weights, outputs and folders.
    fs::rename(place.path("run"), place.path("").join(name(b"r\xfcn"))).unwrap();
    let run = |arguments: &[&OsStr]| place.bare(&[]).args(arguments).output().unwrap();
    let checkpoint = name(b"--checkpoint=r\xfcn");
    let output = run(&[OsStr::new("predict"), checkpoint.as_os_str(), OsStr::new("photos")]);
    assert!(errors(&output)[0].contains(r"'r\xfcn/checkpoints/"), "{:?}", errors(&output));
    succeeded(&output);
    let to = name(b"--output=\xe9.pth");
    let export = run(&[OsStr::new("export"), checkpoint.as_os_str(), OsStr::new("--to=pth"), to.as_os_str()]);
    assert!(succeeded(&export).contains(r"written     \xe9.pth"), "{export:?}");
    let output = run(&[name(b"--output-dir=\xfc").as_os_str()]);
    let refused = ["train: invalid UTF-8 was detected in one or more arguments; see 'train --help'"];
    assert_eq!((output.status.code(), errors(&output)), (Some(2), refused.map(String::from).to_vec()));
    let missing = name(b"--checkpoint=\xe8");
    let output = run(&[OsStr::new("predict"), missing.as_os_str(), OsStr::new("photos")]);
    assert!(errors(&output)[0].contains(r"'\xe8' does not exist"), "{:?}", errors(&output));
}
