//! What becomes of a trained model: measured class by class, asked about images, handed on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Once;

use kiln::report::evaluation::{Evaluation, Pair};
use kiln_engine::state::from_safetensors;
use serde_json::Value;

use crate::command::{Workplace, errors, photographs, refused, succeeded};
use crate::python::ask;

/// A model that has learnt something, on the flex backend.
fn trained() -> Workplace {
    static ONCE: Once = Once::new();
    let arguments = ["--epochs=4", "data.train_size=200", "data.val_size=53", "--learning-rate=0.1", "--tensorboard"];
    Workplace::prepared("kiln-trained", &ONCE, |place| drop(place.train("run", &arguments)))
}

fn evaluation(path: &Path) -> Evaluation {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn table(path: &Path) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(path).unwrap();
    reader.records().map(|row| row.unwrap().iter().map(String::from).collect()).collect()
}

#[test]
fn the_best_validation_of_a_run_is_shown_class_by_class() {
    let place = trained();
    let run = place.run("run").path().to_path_buf();
    let found = evaluation(&run.join("evaluation.json"));
    let images: u64 = found.confusion.iter().map(|pair| pair.2).sum();
    assert_eq!((images, found.classes.len()), (53, 10));
    let right: u64 = found.confusion.iter().filter(|(truth, predicted, _)| truth == predicted).map(|pair| pair.2).sum();
    assert_eq!(found.top1, Some(right as f64 / 53.0), "the same hits as the validation counted");
    // Class i of the drawn images is every tenth from i.
    let by_class: Vec<u64> = found.scores().iter().map(|score| score.images).collect();
    assert_eq!(by_class, [6, 6, 6, 5, 5, 5, 5, 5, 5, 5]);
    assert!(!found.samples.is_empty() && found.samples.len() <= 24);
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("Accuracy by class") && page.contains("data:image/png;base64"));
    let counts = table(&run.join("confusion.csv"));
    assert_eq!(counts[0], ["class", "predicted", "images"]);
    let named = |(truth, predicted, images): &Pair| {
        [found.classes[*truth].clone(), found.classes[*predicted].clone(), images.to_string()]
    };
    assert_eq!(counts[1..], found.confusion.iter().map(named).collect::<Vec<_>>(), "only pairs that occur");
}

#[test]
fn an_evaluation_says_the_same_for_every_number_of_replicas() {
    let place = trained();
    let measure = |arguments: &[&str]| {
        let all = [&["evaluate", "--checkpoint", "run/checkpoints/best", "data=synthetic"], arguments].concat();
        succeeded(&place.bare(&all).output().unwrap())
    };
    let during = evaluation(&place.path("run/evaluation.json"));
    let output = measure(&[]);
    assert!(output.contains("triangle") && output.contains("precision"), "{output}");
    assert_eq!(evaluation(&place.path("run/evaluation.json")), during, "what the run measured stays");
    let after = evaluation(&place.path("run/evaluation/evaluation.json"));
    let page = std::fs::read_to_string(place.path("run/report.html")).unwrap();
    let shown = |it: &Evaluation| page.contains(&kiln::report::markup::escape(&it.of));
    assert!(after.of.contains("best/model.safetensors") && shown(&after) && shown(&during), "{}", after.of);
    assert_eq!((&during.confusion, during.top1, during.top5), (&after.confusion, after.top1, after.top5));
    measure(&["--world-size=3", "--batch-size=5", "--output-dir=elsewhere"]);
    assert_eq!(evaluation(&place.path("elsewhere/evaluation.json")).confusion, after.confusion);
    assert!(!place.path("elsewhere/report.html").exists());
    for (named, part) in [("--width=8", "shape"), ("--stem=cifar", "shape"), ("model.num_classes=3", "'3'")] {
        let output = place.bare(&["evaluate", "--checkpoint=run", "data=synthetic", named]).output().unwrap();
        let errors = errors(&output).join("\n");
        assert!(output.status.code() != Some(0) && errors.contains(part), "what is named stays, {named}: {errors}");
    }
    measure(&["run.output_dir=third"]);
    assert!(place.path("third/evaluation.json").is_file());
}

#[test]
fn a_run_begins_with_the_weights_of_another_one() {
    let place = Workplace::new();
    place.train("first", &["--max-steps=3", "--checkpoint-every=1steps"]);
    let tensors = |run: &str| {
        let path = place.path(run).join("checkpoints/latest/model.safetensors");
        from_safetensors(&std::fs::read(&path).unwrap(), &path).unwrap().0
    };
    for from in ["first", "first/checkpoints/step-00000003"] {
        let pretrained = format!("--pretrained={from}");
        let still = [pretrained.as_str(), "--freeze=conv1", "--max-steps=1"];
        let said = place.train("second", &still);
        assert!(said.contains("from first/checkpoints/"), "{said}");
        assert_eq!(tensors("second")["conv1.weight"], tensors("first")["conv1.weight"]);
        assert_ne!(tensors("second")["fc.weight"], tensors("first")["fc.weight"], "it trains");
        std::fs::remove_dir_all(place.path("second")).unwrap();
    }
    let output = place.small("third", &["--pretrained=photos"]).output().unwrap();
    assert!(errors(&output)[0].contains("'photos' does not exist; give a .pth"), "{:?}", errors(&output));
    std::fs::create_dir(place.path("photos")).unwrap();
    let output = place.small("third", &["--pretrained=photos"]).output().unwrap();
    assert!(errors(&output)[0].contains("'photos' holds no manifest.json"), "{:?}", errors(&output));
}

#[test]
fn images_are_named_as_the_validation_counted_them() {
    let place = trained();
    let drawn = kiln_data::synthetic::draw(kiln_data::synthetic::Split::Validation, 20).unwrap();
    for id in 0..20 {
        let planes = drawn.image(id).unwrap();
        let pixel =
            |x: u32, y: u32| image::Rgb([0, 1, 2].map(|channel| planes[channel * 1024 + (y * 32 + x) as usize]));
        image::RgbImage::from_fn(32, 32, pixel).save(place.path(&format!("{id}.png"))).unwrap();
    }
    let names: Vec<String> = (0..20).map(|id| format!("{id}.png")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let ask = |arguments: &[&str]| {
        place.bare(&[&["predict", "--checkpoint=run/checkpoints/best"], arguments].concat()).output().unwrap()
    };
    let answers: Value = serde_json::from_str(&succeeded(&ask(&[&["--json", "--top=2"], &all[..]].concat()))).unwrap();
    // The first twenty images of the validation, whose predictions the evaluation counted.
    succeeded(
        &place
            .bare(&["evaluate", "--checkpoint=run/checkpoints/best", "data.val_size=20", "--output-dir=twenty"])
            .output()
            .unwrap(),
    );
    let counted = evaluation(&place.path("twenty/evaluation.json"));
    let mut confusion = BTreeMap::<_, u64>::new();
    for (id, answer) in answers.as_array().unwrap().iter().enumerate() {
        assert_eq!(answer["image"], names[id]);
        let guesses = answer["predictions"].as_array().unwrap();
        assert_eq!(guesses.len(), 2);
        assert!(guesses[0]["probability"].as_f64() >= guesses[1]["probability"].as_f64());
        let class = guesses[0]["index"].as_u64().unwrap() as usize;
        assert_eq!(guesses[0]["class"], counted.classes[class]);
        *confusion.entry((id % 10, class)).or_default() += 1;
    }
    assert_eq!(confusion.into_iter().map(|((a, b), images)| (a, b, images)).collect::<Vec<_>>(), counted.confusion);
    let text = succeeded(&ask(&["3.png", "--top=1"]));
    assert!(text.starts_with("3.png\n") && text.lines().count() == 2, "{text}");
}

#[test]
fn the_copy_of_the_best_model_has_the_format_of_its_suffix() {
    let place = Workplace::new();
    let read = |path: &Path| kiln::weights::read(path).unwrap().tensors;
    for (name, decay) in [("a.safetensors", "0"), ("b.pth", "0"), ("c.PT", "0.5"), ("d.onnx", "0")] {
        let copy = format!("--checkpoint={name}");
        place.train(name.split('.').next().unwrap(), &["--epochs=2", &copy, &format!("--ema-decay={decay}")]);
    }
    let best = |run: &str, file: &str| read(&place.run(run).checkpoint("best").join(file));
    assert_eq!(read(&place.path("a.safetensors")), best("a", "model.safetensors"));
    assert_eq!(read(&place.path("b.pth")), best("b", "model.safetensors"));
    assert_eq!(read(&place.path("c.PT")), best("c", "average.safetensors"));
    // Zip archives with the pickle of PyTorch in them, as Python's zipfile finds it.
    for name in ["b.pth", "c.PT"] {
        let bytes = std::fs::read(place.path(name)).unwrap();
        assert!(bytes.starts_with(b"PK\x03\x04") && bytes.windows(16).any(|it| it == b"archive/data.pkl"), "{name}");
    }
    let evaluate = |name: &str| {
        let output = format!("--output-dir={name}-measured");
        place.bare(&["evaluate", "--checkpoint", name, "data=synthetic", "data.val_size=16", &output]).output().unwrap()
    };
    for name in ["a.safetensors", "b.pth", "c.PT"] {
        succeeded(&evaluate(name));
        place.train(&format!("{name}-after"), &["--max-steps=1", &format!("--pretrained={name}")]);
    }
    let measured = |name: &str| evaluation(&place.path(&format!("{name}-measured/evaluation.json"))).loss;
    assert_eq!(measured("b.pth"), measured("a.safetensors"));
    let pretrained = place.small("never", &["--pretrained=d.onnx"]).output().unwrap();
    for output in [evaluate("d.onnx"), pretrained] {
        let line = refused(&output, 1);
        assert!(line.contains("'d.onnx' is an ONNX file, which cannot be read"), "{line}");
    }
    let Some(found) = ask("torch", "weights/names.py", &[&place.path("b.pth"), &place.path("c.PT")]) else { return };
    assert_eq!(found.trim(), "122 122");
}

/// A run whose best checkpoint is the oldest one that it has.
fn with_an_early_best() -> Workplace {
    let place = Workplace::new();
    place.train("run", &["--epochs=2"]);
    let checkpoints = place.path("run/checkpoints");
    let first = std::fs::read_dir(&checkpoints).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    let first = first.filter(|name| name.starts_with("step-")).min().unwrap();
    std::fs::remove_file(checkpoints.join("best")).unwrap();
    std::os::unix::fs::symlink(first, checkpoints.join("best")).unwrap();
    place
}

#[test]
fn the_best_checkpoint_of_a_run_is_taken_unless_another_one_is_asked_for() {
    let place = with_an_early_best();
    let run = |arguments: &[&str]| place.bare(arguments).output().unwrap();
    let weights = |name: &str| std::fs::read(place.run("run").checkpoint(name).join("model.safetensors")).unwrap();
    assert_ne!(weights("best"), weights("latest"));
    let export = |arguments: &[&str]| {
        let said = succeeded(&run(&[&["export", "--checkpoint=run", "--to=safetensors"], arguments].concat()));
        let line = said.lines().next().unwrap().to_string();
        let path = place.path("model.safetensors");
        (line, from_safetensors(&std::fs::read(&path).unwrap(), &path).unwrap().0)
    };
    let read = |name: &str| from_safetensors(&weights(name), Path::new(name)).unwrap().0;
    for (asked, name) in [(&[][..], "best"), (&["--which=best"], "best"), (&["--which=latest"], "latest")] {
        let (said, tensors) = export(asked);
        assert_eq!(tensors, read(name), "{asked:?}");
        assert!(said.contains(&format!("run/checkpoints/{name}/model.safetensors', saved at step ")), "{said}");
    }
    let said = succeeded(&run(&["evaluate", "--checkpoint=run"]));
    assert!(said.contains("checkpoints/best/model.safetensors', saved at step "), "{said}");
    let said = succeeded(&run(&["evaluate", "--checkpoint=run/checkpoints/latest"]));
    assert!(said.contains("checkpoints/latest/model.safetensors"), "{said}");
    let refused = run(&["evaluate", "--checkpoint=run/checkpoints/latest", "--which=best"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(errors(&refused)[0].contains("--which best needs the directory of a run"), "{:?}", errors(&refused));
    // A copy may lack the links; what the run knew of its best is in its state.
    let state = std::fs::read_to_string(place.run("run").checkpoint("latest").join("state.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    let best = read(&format!("step-{:08}", state["state"]["best"]["step"].as_u64().unwrap()));
    std::fs::remove_file(place.path("run/checkpoints/best")).unwrap();
    for asked in [&[][..], &["--which=best"]] {
        assert_eq!(export(asked).1, best, "{asked:?}");
    }
}

#[test]
fn an_evaluation_is_on_all_images_unless_it_is_limited_itself() {
    let place = Workplace::new();
    place.train("runs/last", &["--epochs=1", "data.val_size=53", "--limit-val-batches=2"]);
    let images = |arguments: &[&str]| {
        let said = succeeded(&place.bare(&[&["evaluate"], arguments].concat()).output().unwrap());
        said.lines().find(|line| line.starts_with("images")).unwrap().to_string()
    };
    let during = evaluation(&place.path("runs/last/evaluation.json"));
    for all in [&[][..], &["--limit-val-batches=0"], &["--limit-val-batches=9"]] {
        assert_eq!(images(all), "images      53");
    }
    assert_eq!(images(&["--limit-val-batches=3"]), "images      24 of 53 (--limit-val-batches 3)");
    assert_eq!(images(&["run.limit_val_batches=1"]), "images      8 of 53 (--limit-val-batches 1)");
    let after = evaluation(&place.path("runs/last/evaluation/evaluation.json"));
    assert!(after.of.ends_with("on 8 of 53 (--limit-val-batches 1) images"), "{}", after.of);
    assert_eq!(evaluation(&place.path("runs/last/evaluation.json")), during);
}

#[test]
fn weights_are_measured_on_images_of_their_own_classes_only() {
    let place = Workplace::new();
    photographs(&place.path("pets"), 8);
    place.train("run", &["--epochs=1"]);
    place.train("more", &["--epochs=1", "model.num_classes=12"]);
    succeeded(&place.bare(&["export", "--checkpoint=run", "--to=pth"]).output().unwrap());
    let evaluate = |arguments: &[&str]| place.bare(&[&["evaluate"], arguments].concat()).output().unwrap();
    let pets = ["data=folder", "--data-dir=pets"];
    for (weights, part) in [("run", "have '10' classes, the images '2'"), ("model.pth", "have '10' classes")] {
        let before = place.snapshot();
        let output = evaluate(&[&["--checkpoint", weights], &pets[..]].concat());
        let line = refused(&output, 2);
        assert!(line.contains(part) && line.contains("--data"), "{weights}: {line}");
        assert!(output.stdout.is_empty() && place.snapshot() == before);
    }
    for class in ["train", "val"] {
        for name in 0..8 {
            let from = place.path("pets").join(class).join("cat");
            let to = place.path("pets").join(class).join(format!("pet-{name}"));
            std::fs::create_dir(&to).unwrap();
            std::fs::copy(from.join("one.png"), to.join("one.png")).unwrap();
        }
    }
    let lines = errors(&evaluate(&[&["--checkpoint=run"], &pets[..]].concat()));
    assert!(lines[0].contains("where the images have 'cat'"), "as many, but others: {lines:?}");
    succeeded(&evaluate(&["--checkpoint=more"]));
    succeeded(&evaluate(&["--checkpoint=model.pth", "data=synthetic", "data.val_size=53"]));
}

#[test]
fn files_of_very_many_classes_hold_what_occurs() {
    let place = Workplace::new();
    place.train("run", &["--epochs=1", "--max-steps=1", "--width=4", "data.val_size=53", "model.num_classes=21841"]);
    let found = evaluation(&place.path("run/evaluation.json"));
    assert_eq!(found.confusion.iter().map(|pair| pair.2).sum::<u64>(), 53);
    assert!(found.confusion.len() <= 53 && found.classes.len() > 10, "{:?}", found.confusion);
    let length = |name: &str| std::fs::metadata(place.path("run").join(name)).unwrap().len();
    for name in ["evaluation.json", "classes.csv", "confusion.csv", "confusion.svg", "report.html"] {
        assert!(length(name) < 2 << 20, "{name} has {} bytes", length(name));
    }
}

/// A ResNeXt of a few channels: trained, resumed, measured, asked, handed on, and begun anew from its weights.
#[test]
fn a_network_of_bottlenecks_goes_through_every_command() {
    let place = Workplace::new();
    let network = ["--depth=50", "--width=4", "--groups=4", "--width-per-group=16", "--threads=1", "--epochs=2"];
    let said = place.train("whole", &network);
    assert!(said.contains("model       ResNeXt-50 4x16d, ImageNet stem, width 4, 10 outputs"), "{said}");
    place.train("run", &[&network[..], &["--max-steps=3"]].concat());
    place.train("run", &["--max-steps=0", "--resume"]);
    place.run("run").equals(&place.run("whole"), 2);
    let bare = |arguments: &[&str]| succeeded(&place.bare(arguments).output().unwrap());
    bare(&["export", "--checkpoint=run", "--to=pth", "--output=its.pth"]);
    bare(&["export", "--checkpoint=run", "--to=onnx", "--output=its.onnx"]);
    for weights in ["run", "its.pth"] {
        let weights = format!("--checkpoint={weights}");
        bare(&["evaluate", &weights, "data=synthetic", "data.val_size=16", "--output-dir=measured"]);
    }
    let next = place.train("next", &["--pretrained=its.pth", "--max-steps=1", "--dry-run"]);
    assert!(next.contains("--depth 50 --groups 4 --width-per-group 16") && next.contains("ResNeXt-50 4x16d"), "{next}");
    let other = place.small("other", &["--pretrained=its.pth", "--groups=1", "--dry-run"]).output().unwrap();
    let line = "holds a ResNeXt-50 4x16d where the model is a";
    assert!(errors(&other).iter().any(|it| it.contains(line) && it.contains("set --depth 50 --groups 4")), "{other:?}");
    let small = ["data=synthetic", "data.train_size=32", "--batch-size=4", "--gpu-ids=0,1", "--backend=flex"];
    let plan = bare(&[&["plan", "--"], &network[..4], &small].concat());
    assert!(plan.contains("choice      "), "{plan}");
}
