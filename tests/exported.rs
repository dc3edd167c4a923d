//! Weights as files: what a file says about images and classes is what the commands do with it, what cannot be used is
//! refused, and no name in it is obeyed by a terminal or a spreadsheet.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::Path;
use std::process::Output;
use std::sync::Once;

use image::{ImageFormat, Rgb, RgbImage};
use kiln::report::evaluation::Evaluation;
use kiln::weights::onnx::proto::ModelProto;
use kiln::weights::to_pth;
use kiln_engine::state::{HostTensor, StateDict, from_safetensors, to_safetensors};
use prost::Message;
use serde_json::Value;

use crate::command::{Workplace, errors, succeeded};

/// Names of classes, in order: one that a terminal would obey, two that a spreadsheet would compute.
const CLASSES: [&str; 3] = ["\u{1b}[31mdog\u{9b}2J\u{202e}", "+cat", "=1+2"];
const SHOWN: &str = "\\u001b[31mdog\\u009b2J\\u202e";
const IMAGE: &str = "set/val/+cat/0.jpg";
const MEAN: [&str; 4] = ["--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"];
const FRAME: [&str; 5] =
    ["--image-size=12", "--center-crop=0.75", "--exif=apply", "--interpolation=bicubic", "--classes=a,b,c"];

/// A JPEG with the orientation 6: its rows are the columns of the picture, from the right.
fn lying(path: &Path, class: u8) {
    let gradient = |x: u32, y: u32| Rgb([9 * x as u8, 12 * y as u8, 60 + 80 * class]);
    let mut bytes = Vec::new();
    RgbImage::from_fn(24, 16, gradient).write_to(&mut Cursor::new(&mut bytes), ImageFormat::Jpeg).unwrap();
    let exif = b"\xff\xe1\0\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    bytes.splice(2..2, *exif);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// A run behind CIFAR's stem on a folder of lying photographs, which it turns upright.
fn train(place: &Workplace) -> String {
    for (class, name) in CLASSES.into_iter().enumerate() {
        for part in ["train", "val"] {
            for number in 0..4 {
                lying(&place.path(&format!("set/{part}/{name}/{number}.jpg")), class as u8);
            }
        }
    }
    let frame = ["--image-size=12", "--center-crop=0.75", "data.exif=apply", "--stem=cifar", "--epochs=2"];
    let data = ["--data=folder", "--data-dir=set", "data.interpolation=bicubic"];
    place.train("run", &[&data[..], &frame[..]].concat())
}

fn trained() -> Workplace {
    static ONCE: Once = Once::new();
    Workplace::prepared("kiln-exported", &ONCE, |place| drop(train(place)))
}

fn run(place: &Workplace, command: &str, weights: &str, arguments: &[&str]) -> Output {
    place.bare(&[&[command, "--checkpoint", weights], arguments].concat()).output().unwrap()
}

fn export(place: &Workplace, weights: &str, file: &str, arguments: &[&str]) -> Output {
    let (to, output) = (file.rsplit_once('.').unwrap().1, format!("--output={file}"));
    run(place, "export", weights, &[&["--to", to, &output], arguments].concat())
}

/// The probabilities of an image, by class.
fn answer(place: &Workplace, weights: &str, arguments: &[&str]) -> (Value, Vec<String>) {
    let output = run(place, "predict", weights, &[&["--json", "--top=3", IMAGE], arguments].concat());
    let answers: Value = serde_json::from_str(&succeeded(&output)).unwrap();
    let warnings = errors(&output).into_iter().filter(|line| line.contains("warning")).collect();
    (answers[0]["predictions"].clone(), warnings)
}

fn measured(place: &Workplace, weights: &str, arguments: &[&str]) -> (Evaluation, Vec<String>) {
    let fixed = ["--data=folder", "--data-dir=set", "--output-dir=measured", "--world-size=1", "--batch-size=12"];
    let output = run(place, "evaluate", weights, &[&fixed, arguments].concat());
    succeeded(&output);
    let warnings = errors(&output).into_iter().filter(|line| line.contains("warning")).collect();
    let file = std::fs::read(place.path("measured/evaluation.json")).unwrap();
    let found: Evaluation = serde_json::from_slice(&file).unwrap();
    (Evaluation { of: String::new(), ..found }, warnings)
}

fn tensors(place: &Workplace) -> StateDict {
    let path = place.run("run").checkpoint("best/model.safetensors");
    from_safetensors(&std::fs::read(&path).unwrap(), &path).unwrap().0
}

fn without_names(answer: &Value) -> Vec<(u64, f64)> {
    let guess = |guess: &Value| (guess["index"].as_u64().unwrap(), guess["probability"].as_f64().unwrap());
    answer.as_array().unwrap().iter().map(guess).collect()
}

#[test]
fn every_format_carries_all_that_the_images_need() {
    let place = trained();
    let expected = answer(&place, "run", &[]);
    assert!(expected.1.is_empty(), "{:?}", expected.1);
    let evaluated = measured(&place, "run", &[]);
    let said = ["a.safetensors", "b.pth", "c.onnx"].map(|file| succeeded(&export(&place, "run", file, &[])));
    for file in ["a.safetensors", "b.pth"] {
        assert_eq!(answer(&place, file, &[]), expected, "{file}");
        assert_eq!(measured(&place, file, &[]), evaluated, "{file}");
        // And further on.
        succeeded(&export(&place, file, "again.pth", &[]));
        assert_eq!(std::fs::read(place.path("again.pth")).unwrap(), std::fs::read(place.path("b.pth")).unwrap());
        succeeded(&export(&place, file, "again.onnx", &[]));
        assert_eq!(std::fs::read(place.path("again.onnx")).unwrap(), std::fs::read(place.path("c.onnx")).unwrap());
    }
    let words = "12x12, the middle 75 % of the shorter side, turned upright by EXIF, resized by bicubic interpolation";
    for said in said {
        assert!(said.contains(words), "{said}");
    }
    assert_ne!(expected.0, answer(&place, "run", &["--exif=ignore"]).0, "the orientation is seen");
    // The images fit without being resized.
    let resized = |more: &[&str]| answer(&place, "a.safetensors", &[&["--image-size=10"], more].concat()).0;
    assert_eq!(resized(&[]), resized(&["--interpolation=bicubic"]));
    assert_ne!(resized(&[]), resized(&["--interpolation=bilinear"]));
    let resized = |more: &[&str]| measured(&place, "b.pth", &[&["--image-size=10"], more].concat()).0;
    assert_eq!(resized(&[]), resized(&["data.interpolation=bicubic"]));
    assert_ne!(resized(&[]), resized(&["data.interpolation=bilinear"]));
    assert_ne!(expected.0, answer(&place, "run", &["--mean=0.4914,0.4822,0.4465"]).0, "the mean is seen");
    let model = ModelProto::decode(std::fs::read(place.path("c.onnx")).unwrap().as_slice()).unwrap();
    let says = |key: &str| model.metadata_props.iter().find(|pair| pair.key == key).unwrap().value.clone();
    assert_eq!(says("mean"), "[0.485, 0.456, 0.406]");
    assert_eq!([says("size"), says("center_crop"), says("exif")], ["[12, 12]", "0.75", "apply"]);
    assert_eq!(says("interpolation"), "bicubic");
    assert_eq!(serde_json::from_str::<Vec<String>>(&says("classes")).unwrap(), CLASSES);
    // As many classes, but others.
    CLASSES.iter().zip(["a", "b", "c"]).for_each(|(name, other)| {
        for part in ["train", "val"] {
            let [from, to] = [format!("set/{part}/{name}"), format!("others/{part}/{other}")].map(|it| place.path(&it));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::rename(from, to).unwrap();
        }
    });
    let refused = run(&place, "evaluate", "b.pth", &["--data=folder", "--data-dir=others"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(errors(&refused)[0].contains("where the images have 'a'"), "{:?}", errors(&refused));
}

#[test]
fn what_a_file_does_not_say_is_said_once_with_what_sets_it() {
    let place = trained();
    let bytes = to_pth(&tensors(&place), None).unwrap();
    std::fs::write(place.path("bare.pth"), bytes).unwrap();
    let (expected, _) = answer(&place, "run", &[]);
    let (assumed, warnings) = answer(&place, "bare.pth", &[]);
    assert_ne!(without_names(&assumed), without_names(&expected));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let flags = "--mean 0.4914,0.4822,0.4465 --std 0.247,0.2435,0.2616 --image-size 32 --center-crop 0 --exif ignore";
    assert!(warnings[0].contains("'bare.pth'") && warnings[0].contains(flags), "{warnings:?}");
    assert!(warnings[0].contains("--classes"), "{warnings:?}");
    let all = [&MEAN[..], &FRAME].concat();
    let (told, warnings) = answer(&place, "bare.pth", &all);
    assert_eq!((without_names(&told), warnings.len()), (without_names(&expected), 0), "{warnings:?}");
    assert!(["a", "b", "c"].map(Value::from).contains(&told[0]["class"]));
    // A part is said, the rest is not.
    let (_, warnings) = answer(&place, "bare.pth", &all[..6]);
    assert!(
        warnings[0].contains("assumed: --exif ignore --classes") && !warnings[0].contains("--mean"),
        "{warnings:?}"
    );
    // What is told once can stay in a file.
    succeeded(&export(&place, "bare.pth", "full.safetensors", &all));
    assert_eq!(answer(&place, "full.safetensors", &[]), (told, vec![]));

    let (_, warnings) = measured(&place, "bare.pth", &[]);
    let settings = "--image-size 32 --center-crop 0 data.exif=ignore data.normalization=dataset";
    assert!(warnings.len() == 1 && warnings[0].contains(settings), "{warnings:?}");
    let named = ["--image-size=12", "--center-crop=0.75", "data.exif=apply", "data.normalization=imagenet"];
    let named = [&named[..], &["data.interpolation=bicubic"]].concat();
    assert_eq!(measured(&place, "bare.pth", &named), measured(&place, "run", &[]));

    for (wrong, part) in [
        ("--mean=0.5", "three numbers"),
        ("--std=0,1,1", "three numbers above 0"),
        ("--center-crop=0.01", "0 or a number from 0.1 to 1"),
        ("--image-size=0", "a whole number, 1 to 1024"),
        ("--exif=perhaps", "possible values: ignore, apply"),
        ("--interpolation=area", "possible values: bilinear, bicubic, nearest"),
        ("--classes=a,b,c,d", "4 classes are named, but the network in 'bare.pth' has 3 outputs"),
    ] {
        let refused = run(&place, "predict", "bare.pth", &[IMAGE, wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
        assert!(errors(&refused)[0].contains(part), "{:?}", errors(&refused));
    }
}

#[test]
fn weights_that_cannot_be_used_are_refused_and_leave_no_file() {
    let place = trained();
    let file = |name: &str, change: &dyn Fn(&mut StateDict)| {
        let mut tensors = tensors(&place);
        change(&mut tensors);
        std::fs::write(place.path(name), to_safetensors(&tensors, &[])).unwrap();
    };
    let set = |tensors: &mut StateDict, name: &str, number: f32| {
        let Some(HostTensor::F32 { data, .. }) = tensors.get_mut(name) else { panic!("it has no '{name}'") };
        data.fill(number);
    };
    file("nan.safetensors", &|it| set(it, "layer2.0.conv1.weight", f32::NAN));
    file("infinite.safetensors", &|it| set(it, "fc.bias", f32::NEG_INFINITY));
    file("negative.safetensors", &|it| set(it, "bn1.running_var", -1.0));
    file("lacking.safetensors", &|it| drop(it.remove("layer1.0.bn1.running_mean")));
    file("more.safetensors", &|it| drop(it.insert("extra.weight".into(), it["fc.weight"].clone())));
    file("huge.safetensors", &|it| set(it, "fc.weight", f32::MAX));
    let before = place.snapshot();
    let refused = |output: Output, parts: &[&str]| {
        let lines = errors(&output);
        assert_eq!((output.status.code(), lines.len(), output.stdout.len()), (Some(1), 1, 0), "{lines:?}");
        parts.iter().for_each(|part| assert!(lines[0].contains(part), "{lines:?}"));
    };
    for (name, tensor) in [("nan.safetensors", "layer2.0.conv1.weight"), ("infinite.safetensors", "fc.bias")] {
        let parts = [name, tensor, "not finite"];
        refused(run(&place, "predict", name, &[IMAGE]), &parts);
        refused(run(&place, "evaluate", name, &["--data=folder", "--data-dir=set"]), &parts);
        refused(export(&place, name, "x.pth", &[]), &parts);
        let pretrained = format!("--pretrained={name}");
        let training = ["--data=folder", "--data-dir=set", "--stem=cifar", &pretrained, "--output-dir=never"];
        let output = place.small("never", &training).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            errors(&output).iter().any(|line| parts.iter().all(|part| line.contains(part))),
            "{:?}",
            errors(&output)
        );
    }
    for (name, part) in [
        ("negative.safetensors", "'bn1.running_var' in"),
        ("negative.safetensors", "holds a negative variance: the file is damaged"),
        ("lacking.safetensors", "'layer1.0.bn1.running_mean' is missing"),
        ("more.safetensors", "'extra.weight' is unknown"),
    ] {
        for file in ["x.safetensors", "x.pth", "x.onnx"] {
            refused(export(&place, name, file, &[]), &[name, part]);
        }
    }
    let told = [&[IMAGE][..], &FRAME_AND_MEAN].concat();
    refused_after_a_warning(run(&place, "predict", "huge.safetensors", &told));
    refused_after_a_warning(run(&place, "evaluate", "huge.safetensors", &["--data=folder", "--data-dir=set"]));
    std::fs::remove_dir_all(place.path("never")).ok();
    assert!(place.snapshot() == before, "files are left");
}

const FRAME_AND_MEAN: [&str; 8] = [MEAN[0], MEAN[1], MEAN[2], MEAN[3], FRAME[0], FRAME[1], FRAME[2], FRAME[3]];

#[track_caller]
fn refused_after_a_warning(output: Output) {
    let lines = errors(&output);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{lines:?}");
    assert!(lines.last().unwrap().contains("'huge.safetensors' computes numbers that are not finite"), "{lines:?}");
}

#[test]
fn names_are_not_commands_to_a_terminal_or_a_spreadsheet() {
    let place = Workplace::new();
    let said = train(&place);
    let clean = |text: &str| {
        let obeyed = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
        assert!(!text.contains(obeyed), "{text:?}");
    };
    clean(&said);
    succeeded(&export(&place, "run", "\u{1b}[31mm.pth", &[]));
    for weights in ["run", "\u{1b}[31mm.pth"] {
        let evaluate = ["--data=folder", "--data-dir=set", "--output-dir=\u{1b}[1mout"];
        let outputs = [
            run(&place, "evaluate", weights, &evaluate),
            run(&place, "predict", weights, &["--top=3", IMAGE]),
            run(&place, "predict", weights, &["--top=3", "--json", IMAGE]),
            run(&place, "predict", weights, &["--top=3", &format!("set/val/{}/0.jpg", CLASSES[0])]),
            export(&place, weights, "\u{1b}[31mm.onnx", &[]),
        ];
        let texts = outputs.map(|output| {
            clean(&String::from_utf8(output.stderr.clone()).unwrap());
            let text = succeeded(&output);
            clean(&text);
            text
        });
        assert!(texts[0].contains(&format!("\n{SHOWN}  ")) && texts[1].contains(SHOWN), "{texts:?}");
        assert!(texts[3].starts_with(&format!("set/val/{SHOWN}/0.jpg\n")), "{texts:?}");
        // For programs it is the name that it is.
        let answers: Value = serde_json::from_str(&texts[2]).unwrap();
        let mut names: Vec<_> = (0..3).map(|at| answers[0]["predictions"][at]["class"].clone()).collect();
        names.sort_by_key(|name| name.to_string());
        assert!(CLASSES.iter().all(|name| names.contains(&Value::from(*name))), "{names:?}");
    }
    for (file, columns) in [("classes.csv", 1), ("confusion.csv", 2)] {
        let mut reader = csv::Reader::from_path(place.path("run").join(file)).unwrap();
        let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.unwrap()).collect();
        for column in 0..columns {
            let names: BTreeSet<&str> = rows.iter().map(|row| &row[column]).collect();
            assert!(names.iter().all(|name| [CLASSES[0], "'+cat", "'=1+2"].contains(name)), "{file}: {names:?}");
            assert!(column > 0 || names.len() == 3, "{file}: {names:?}");
        }
    }
}
