//! Defaults that follow from the source of the images and from pretrained weights: one experiment however they are
//! named.

use super::*;

const OWN: &[&str] = &[
    "folder",
    "webdataset",
    #[cfg(feature = "parquet")]
    "parquet",
    "pack",
];

/// What makes the experiment of one on photographs.
fn photographs(config: &Config) -> (usize, f64, f64, Stem) {
    let Config { data, model, .. } = config;
    (data.image_size, data.resized_crop, data.center_crop, model.stem)
}

const PHOTOGRAPHS: (usize, f64, f64, Stem) = (224, 0.08, 0.875, Stem::Imagenet);

fn with_environment(line: &[&str], name: &str, value: &str) -> Config {
    let environment = vec![(name.to_string(), value.to_string())];
    resolve(&Request { environment, ..request(line) }).unwrap().config
}

#[test]
fn every_spelling_of_a_source_is_the_same_experiment() {
    let dir = tempfile::tempdir().unwrap();
    for source in OWN {
        let expected = config(&["--data", source]);
        assert_eq!(photographs(&expected), PHOTOGRAPHS, "{source}");
        let file = write(dir.path(), "mine.toml", &format!("[data]\nsource = \"{source}\"\n"));
        for line in [
            vec![format!("data={source}")],
            vec![format!("data.source={source}")],
            vec!["--config".into(), file.display().to_string()],
        ] {
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            assert_eq!(config(&line), expected, "{line:?}");
        }
        assert_eq!(with_environment(&[], "TRAIN__DATA__SOURCE", source), expected);
        assert_eq!(with_environment(&["data.source=${oc.env:KIND}"], "KIND", source), expected);
        let size = with_environment(&["data.source=${oc.env:KIND}", "data.cutout=${data.image_size}"], "KIND", source);
        assert_eq!(size.data.cutout, 224, "a reference sees the default of the source");
    }
    for source in ["cifar10", "cifar100", "synthetic"] {
        assert_eq!(photographs(&config(&["--data", source])), (32, 0.0, 0.0, Stem::Cifar), "{source}");
    }
}

#[test]
fn whatever_the_user_says_wins_over_what_a_source_implies() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "mine.toml", "[data]\nimage_size = 160\n[model]\nstem = \"cifar\"\n");
    let file = file.to_str().unwrap();
    let expected = (160, 0.08, 0.875, Stem::Cifar);
    assert_eq!(photographs(&config(&["--config", file, "data=folder"])), expected);
    assert_eq!(photographs(&config(&["--config", file, "--data", "folder"])), expected);
    // Also with the values of config/default.toml.
    let small = ["--data=folder", "--image-size=32", "--stem=cifar", "data.resized_crop=0", "data.center_crop=0"];
    assert_eq!(photographs(&config(&small)), (32, 0.0, 0.0, Stem::Cifar));
    let transfer = config(&["experiment=transfer", "--data", "folder"]);
    assert_eq!((photographs(&transfer), transfer.model.freeze.as_str()), (PHOTOGRAPHS, "backbone"));
}

#[test]
fn a_note_names_what_a_source_changes_and_nothing_else() {
    let note = |line: &[&str]| resolved(line).notes.into_iter().find(|note| note.contains("photographs"));
    assert_eq!(
        note(&["data=folder", "--stem", "imagenet"]).unwrap(),
        "images are treated as photographs (--data folder): --image-size 224 --resized-crop 0.08 --center-crop 0.875, unless set"
    );
    assert_eq!(note(&["data=folder", "--image-size=8", "--resized-crop=1", "--center-crop=1", "--stem=cifar"]), None);
    assert_eq!(note(&["--data", "cifar100"]), None);
}

#[test]
fn a_saved_configuration_has_no_other_defaults() {
    let small = ["--data=folder", "--image-size=32", "--stem=cifar", "--resized-crop=0", "--center-crop=0"];
    for line in [&small[..], &["--data=folder"], &["data=synthetic"]] {
        let ran = config(line);
        let saved = Saved { path: "config.toml".into(), text: ran.to_toml(), note: None, without: &[], older: "" };
        let again = |line: &[&str]| resolve(&Request { saved: Some(saved.clone()), ..request(line) }).unwrap().config;
        assert_eq!(again(&[]), ran, "{line:?}");
        assert_eq!(photographs(&again(&["--data", "webdataset"])), photographs(&ran), "{line:?}");
    }
}

#[test]
fn pretrained_weights_say_what_images_and_network_are_unless_the_user_does() {
    let text = "[data]\nimage_size = 48\nnormalization = \"0.5,0.5,0.5/0.25,0.25,0.25\"\n[model]\nstem = \"cifar\"\n";
    let weights = Saved { path: "w.pth".into(), text: text.into(), note: None, without: &[], older: "" };
    let with = |line: &[&str]| resolve(&Request { weights: Some(weights.clone()), ..request(line) }).unwrap();
    let line = ["--data", "folder", "--pretrained", "w.pth"];
    let Resolved { config, notes, .. } = with(&line);
    assert_eq!(photographs(&config), (48, 0.08, 0.875, Stem::Cifar), "above what the source implies");
    assert_eq!(config.data.normalization.to_string(), "0.5,0.5,0.5/0.25,0.25,0.25");
    let said = "settings of the weights 'w.pth': --image-size 48 data.normalization=0.5,0.5,0.5/0.25,0.25,0.25 --stem cifar, unless set";
    assert!(notes.iter().any(|note| note == said), "{notes:?}");
    let own = with(&[&line[..], &["--image-size=64", "data.normalization=imagenet", "--stem=imagenet"]].concat());
    assert_eq!((own.config.data.image_size, own.config.model.stem), (64, Stem::Imagenet));
    assert_eq!(own.config.data.normalization.to_string(), "imagenet");
}

#[test]
fn a_normalization_is_a_name_or_six_numbers() {
    let given = |text: &str| config(&[&format!("data.normalization={text}")]).data.normalization.to_string();
    for text in ["dataset", "imagenet", "0.5,0.5,0.5/0.25,0.25,0.25", "0.4914,0,-0.1/0.247,1,0.001"] {
        assert_eq!(given(text), text);
    }
    for wrong in ["imagenets", "0.5,0.5/0.5,0.5", "0,0,0/1,1,0", "0,0,nan/1,1,1", "0,0,0", "0,0,0/1,1,1/2", "3"] {
        let line = complaint(&[&format!("data.normalization={wrong}")]);
        let rule = "must be dataset, imagenet, or means and deviations as in 0.5,0.5,0.5/0.25,0.25,0.25";
        assert!(line.contains(rule) && line.contains(&format!("'{wrong}'")), "{line}");
    }
}

#[test]
fn a_resumed_run_is_placed_as_it_was_or_anew_as_a_whole() {
    let ran = |line: &[&str]| {
        let text = resolve(&request(line)).unwrap().config.to_toml();
        Saved { path: "config.toml".into(), text, note: None, without: &[], older: "" }
    };
    let resumed = |saved: &Saved, line: &[&str], environment: &[(&str, &str)]| {
        let environment = environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let request = Request { saved: Some(saved.clone()), environment, ..request(line) };
        let parallel = resolve(&request).unwrap().config.parallel;
        (parallel.gpu_ids, parallel.stages, parallel.split_points, parallel.replicas_per_device.to_string())
    };
    let even = || "even".to_string();
    let staged = ran(&["--stages", "2", "--world-size", "2", "--gpu-ids", "4,5,6,7", "--split-points", "3"]);
    assert_eq!(resumed(&staged, &[], &[]), (vec![4, 5, 6, 7], 2, vec![3], even()));
    assert_eq!(resumed(&staged, &["--gpu-ids", "1"], &[]), (vec![1], 1, vec![], even()));
    assert_eq!(resumed(&staged, &["--stages", "1"], &[]), (vec![0], 1, vec![], even()));
    let torchrun =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
    assert_eq!(resumed(&staged, &[], &torchrun), (vec![1], 1, vec![], even()));
    let unequal = ran(&["--world-size", "4", "--gpu-ids", "0,1", "--replicas-per-device", "3,1"]);
    assert_eq!(resumed(&unequal, &[], &[]), (vec![0, 1], 1, vec![], "3,1".to_string()));
    // The devices of one process of several are not those of the run.
    let elastic = ran(&["--world-size", "4", "--gpu-ids", "3", "--elastic", "1:4", "--dist-url", "tcp://a:29500"]);
    assert_eq!(resumed(&elastic, &[], &[]).0, [0]);
    let second = ran(&["--world-size", "4", "--gpu-ids", "3", "--rank", "1", "--dist-url", "tcp://a:29500"]);
    assert_eq!(resumed(&second, &[], &[]).0, [0]);
}
