//! The page, and TensorBoard's files, of runs of the real program.

use kiln::metrics::Record;

use crate::command::{Workplace, errors, succeeded};
use crate::python::ask;

#[test]
fn a_run_leaves_its_page_and_others_are_compared_on_demand() {
    let today = || {
        let output = std::process::Command::new("date").args(["-u", "+%Y-%m-%d"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    let (place, days) = (Workplace::new(), [today()]);
    place.train("first", &["--epochs=2"]);
    place.train("second", &["--epochs=2", "--learning-rate=0.01"]);
    let page = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    let epochs = place
        .run("first")
        .records()
        .into_iter()
        .filter_map(|it| if let Record::Epoch(it) = it { Some(it) } else { None });
    let best = epochs.map(|epoch| epoch.val_accuracy).fold(0.0, f64::max);
    let first = page("first/report.html");
    assert!(first.contains(&format!("{:.2} %", 100.0 * best)));
    for (name, words) in [
        ("data", "synthetic: 30 training and 16 validation images of 32x32, 10 classes</dd>"),
        ("model", "ResNet-18, ImageNet stem, width 4, "),
        ("batch", "8 images per step = 2 x 4</dd>"),
        ("schedule", "8 steps, 4 per epoch; learning rate 0.05, then cosine to 0</dd>"),
        ("optimizer", "SGD, momentum 0.9"),
    ] {
        assert!(first.contains(&format!("<dt>{name}</dt><dd>{words}")), "{name}");
    }
    let command = first.split_once("<dt>command</dt><dd>").unwrap().1;
    assert!(command.split("</dd>").next().unwrap().ends_with("--output-dir=first --epochs=2"), "{command}");
    let date = first.split_once("<dt>began</dt><dd>").unwrap().1.split("</dd>").next().unwrap();
    assert!(date.ends_with(" UTC") && days.iter().chain(&[today()]).any(|day| date.starts_with(day)), "{date}");
    let output = succeeded(&place.bare(&["report", "first", "second"]).output().unwrap());
    assert_eq!(output, "report      report/report.html, with curves.svg in the same directory\n");
    let both = page("report/report.html");
    for part in ["first", "second", "optim.learning_rate", "0.01"] {
        assert!(both.contains(part), "{part}");
    }
    assert!(page("report/curves.svg").contains("</svg>"));
    assert!(!place.path("report.html").exists() && !place.path("curves.svg").exists());
    let wrong = place.bare(&["report", "nowhere"]).output().unwrap();
    assert_ne!(wrong.status.code(), Some(0));
    assert!(errors(&wrong)[0].contains("nowhere"), "{:?}", errors(&wrong));
}

#[test]
fn a_resumed_run_has_an_event_file_for_each_session() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2", "--max-steps=6", "--tensorboard"]);
    place.train("run", &["--epochs=2", "--resume", "--tensorboard"]);
    assert_eq!(std::fs::read_dir(place.path("run/tensorboard")).unwrap().count(), 2);
    place.train("plain", &["--epochs=1"]);
    assert!(!place.path("plain/tensorboard").exists());
}

#[test]
fn tensorboard_shows_a_batch_and_the_confusion_matrix() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2", "--tensorboard", "--batch-size=8"]);
    let Some(found) = ask("tensorboard", "read_events.py", &[&place.path("run/tensorboard")]) else { return };
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    // Sixteen images of 32 pixels in four rows with gaps of two, once in a session.
    assert_eq!(found["images"]["train/images"], serde_json::json!([[1, 134, 134]]));
    assert!(!found["images"]["validation/confusion"].as_array().unwrap().is_empty());
    assert!(found["text"]["configuration"][0][1].as_str().unwrap().contains("world_size"), "{found}");
}
