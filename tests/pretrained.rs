//! A training that begins with the weights of another one takes over how their images are prepared, and notices images
//! that are too small for it.

use kiln::config::Config;

use crate::command::{Workplace, errors, photographs, succeeded};

/// What would run.
fn config(place: &Workplace, arguments: &[&str]) -> Config {
    let output = place.bare(&[&["config"], arguments].concat()).output().unwrap();
    toml::from_str(&succeeded(&output)).unwrap()
}

/// Image size, normalisation, stem and depth.
fn preparation(Config { data, model, .. }: &Config) -> (usize, String, String, usize) {
    (data.image_size, data.normalization.to_string(), format!("{:?}", model.stem), model.depth)
}

const FOLDER: [&str; 2] = ["--data=folder", "--data-dir=pets"];

#[test]
fn weights_bring_the_images_that_they_were_trained_with() {
    let place = Workplace::new();
    let small = ["--stem=cifar", "--image-size=16", "--width=4", "--depth=34", "--max-steps=1"];
    let given = "0.25,0.5,0.75/0.125,0.25,0.5";
    place.train("run", &[&small[..], &[&format!("data.normalization={given}")]].concat());
    let expected = (16, given.to_string(), "Cifar".to_string(), 34);
    let of = |from: &str, more: &[&str]| {
        preparation(&config(&place, &[&FOLDER[..], &[&format!("--pretrained={from}")], more].concat()))
    };
    assert_eq!(of("run", &[]), expected);
    for file in ["model.safetensors", "model.pth"] {
        let to = format!("--to={}", file.rsplit_once('.').unwrap().1);
        succeeded(&place.bare(&["export", "--checkpoint=run", &to, "--output", file]).output().unwrap());
        assert_eq!(of(file, &[]), expected, "{file}");
    }
    let own = ["--image-size=40", "data.normalization=imagenet", "--stem=imagenet", "--depth=18"];
    assert_eq!(of("run", &own), (40, "imagenet".into(), "Imagenet".into(), 18), "what is said wins");
    assert_eq!(of("torchvision", &[]), (224, "imagenet".into(), "Imagenet".into(), 18));
    assert_eq!(of("torchvision", &["--depth=34"]).3, 34);
    assert_eq!(of("no-such-file.pth", &[]), (224, "dataset".into(), "Imagenet".into(), 18));

    photographs(&place.path("pets"), 16);
    let arguments = [&FOLDER[..], &["--pretrained=run", "--width=4", "--max-steps=1", "--output-dir=next"]].concat();
    let output = place.bare(&[&arguments[..], &["--progress=plain"]].concat()).output().unwrap();
    let said = succeeded(&output);
    let note = format!(
        "note: settings of the weights 'run': --image-size 16 data.normalization={given} --stem cifar --depth 34, unless set"
    );
    assert!(said.contains(&note) && said.contains("head of 10 classes dropped"), "{said}");
    // It goes on with these settings when the weights are gone.
    std::fs::remove_dir_all(place.path("run")).unwrap();
    let again = preparation(&config(&place, &["--resume=next"]));
    assert_eq!(again, expected);
    succeeded(&place.bare(&["--resume=next", "--max-steps=2", "--progress=plain"]).output().unwrap());
}

#[test]
fn small_images_are_noticed_where_they_would_be_enlarged() {
    let place = Workplace::new();
    let warnings = |more: &[&str]| {
        let output = place.bare(&[&FOLDER[..], &["--dry-run", "--width=2"], more].concat()).output().unwrap();
        succeeded(&output);
        errors(&output)
    };
    photographs(&place.path("pets"), 28);
    let expected = "train: warning: images of 28 pixels are enlarged to 224, which only takes time; use --image-size 28 --stem cifar --resized-crop 0 --center-crop 0";
    assert_eq!(warnings(&[]), [expected]);
    assert!(warnings(&["--image-size=28", "--stem=cifar"]).is_empty());
    // The weights want them so large.
    let cifar = ["data=synthetic", "--max-steps=1", "--width=2", "--stem=imagenet", "--output-dir=run"];
    succeeded(&place.bare(&[&cifar[..], &["data.train_size=8", "data.val_size=4"]].concat()).output().unwrap());
    assert!(warnings(&["--pretrained=run", "--image-size=224"]).is_empty());
    photographs(&place.path("pets"), 90);
    assert!(warnings(&[]).is_empty());
}
