//! The report of a run: its numbers are those of the run's files, whatever the files hold and however few they are.

mod browser;
mod command;
mod damage;
mod drawing;
mod processes;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kiln::report::{self, Run};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::files::file;

/// A run directory in the tests' own files.
static FIXTURE: LazyLock<PathBuf> = LazyLock::new(|| file("tests/fixtures/run-report"));
const FILES: [&str; 5] = ["metrics.jsonl", "summary.json", "config.toml", "evaluation.json", "trace.json"];

/// A copy of the run that may be changed, under the name of a run.
fn copy(parent: &TempDir, name: &str) -> PathBuf {
    let directory = parent.path().join(name);
    fs::create_dir(&directory).unwrap();
    for file in FILES {
        fs::copy(FIXTURE.join(file), directory.join(file)).unwrap();
    }
    directory
}

fn page(runs: &[PathBuf]) -> String {
    let directory = tempdir().unwrap();
    let to = directory.path().join("report.html");
    report::write(runs, &to).unwrap();
    fs::read_to_string(to).unwrap()
}

fn epochs() -> Vec<Value> {
    let text = fs::read_to_string(FIXTURE.join("metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == "epoch").collect()
}

fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from} is not in {}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}

/// What stands beside a name at the top of the page.
fn tile(page: &str, name: &str) -> String {
    let start = page.find(&format!("<dt>{name}</dt><dd>")).unwrap_or_else(|| panic!("no tile says {name}"));
    let value = &page[start + name.len() + "<dt></dt><dd>".len()..];
    value[..value.find('<').unwrap()].into()
}

#[test]
fn the_numbers_at_the_top_are_those_of_the_files() {
    let page = page(std::slice::from_ref(&*FIXTURE));
    let accuracies: Vec<f64> = epochs().iter().map(|it| it["val_accuracy"].as_f64().unwrap()).collect();
    let best = accuracies.iter().copied().fold(0.0, f64::max);
    let summary: Value = serde_json::from_slice(&fs::read(FIXTURE.join("summary.json")).unwrap()).unwrap();

    assert_ne!(best, accuracies[accuracies.len() - 1], "the fixture tells best and last apart");
    assert_eq!(tile(&page, "Best accuracy"), format!("{:.2} %", 100.0 * best));
    assert_eq!(tile(&page, "Last accuracy"), format!("{:.2} %", 100.0 * accuracies[accuracies.len() - 1]));
    assert_eq!(tile(&page, "Epochs"), epochs().len().to_string());
    assert_eq!(tile(&page, "Steps"), summary["steps"].to_string());
    assert_eq!(tile(&page, "Throughput"), format!("{:.0}", summary["images_per_second"].as_f64().unwrap()));
    assert_eq!(tile(&page, "Duration"), format!("{:.0}s", summary["seconds"].as_f64().unwrap()));
    assert_eq!(tile(&page, "Peak memory"), "1.40 GiB");
    assert_eq!(tile(&page, "World size"), "4");
    assert_eq!(tile(&page, "Backend"), "flex", "what the environment says goes before the setting, which is auto");
    assert_eq!(tile(&page, "Precision"), "f32");
}

#[test]
fn every_epoch_has_its_row() {
    let page = page(std::slice::from_ref(&*FIXTURE));
    for it in epochs() {
        let number = |key: &str| it[key].as_f64().unwrap();
        let percent = |key: &str| format!("{:.2} %", 100.0 * number(key));
        let cells = [
            it["step"].to_string(),
            format!("{:.4}", number("train_loss")),
            percent("train_accuracy"),
            format!("{:.4}", number("val_loss")),
            percent("val_accuracy"),
            percent("val_top5"),
        ];
        let row = cells.map(|cell| format!("<td class=\"number\">{cell}</td>")).concat();
        assert!(page.contains(&row), "epoch {} is not there as {row}", it["epoch"]);
    }
}

#[test]
fn all_parts_of_a_whole_run_are_there_without_a_note() {
    let page = page(std::slice::from_ref(&*FIXTURE));
    for part in ["Results", "Curves", "Evaluation", "Where time went", "Generations", "Environment", "Details"] {
        assert!(page.contains(&format!("<h2>{part}</h2>")), "{part} is missing");
    }
    for chart in ["Accuracy, %", "Loss", "Learning rate", "Gradient norm, before clipping"] {
        assert!(page.contains(&format!("<title>{chart}, by epoch")), "{chart} is missing");
    }
    assert!(page.contains("<title>Throughput, images/s, by seconds"), "throughput is missing");
    assert!(page.contains("host b, process 4711 was lost: its connection closed"));
    assert!(!page.contains("<aside"), "a note");
}

#[test]
fn a_page_fetches_nothing_and_runs_nothing() {
    let page = page(std::slice::from_ref(&*FIXTURE));
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("url(") && !page.contains("<script"));
    let sources = page.split("src=\"").skip(1).chain(page.split("href=\"").skip(1));
    assert!(sources.into_iter().all(|source| source.starts_with("data:")));
}

#[test]
fn whatever_a_file_or_a_name_contains_stays_text() {
    let parent = tempdir().unwrap();
    let evil = "<script>alert('\"&\u{1}";
    let directory = copy(&parent, evil);
    let as_json = serde_json::to_string(evil).unwrap();
    edit(&directory.join("evaluation.json"), "\"airplane\"", &as_json);
    edit(&directory.join("metrics.jsonl"), "\"2 processes came\"", &as_json);
    edit(&directory.join("summary.json"), "\"node-a\"", &as_json);
    edit(&directory.join("trace.json"), "\"backward\"", &as_json);
    edit(&directory.join("config.toml"), "\"cosine\"", &as_json);

    let to = parent.path().join("report.html");
    report::write(&[directory, FIXTURE.clone()], &to).unwrap();
    for file in ["report.html", "curves.svg"] {
        let text = fs::read_to_string(parent.path().join(file)).unwrap();
        assert!(!text.contains("<script") && !text.contains('\u{1}'), "{file} lets markup through");
        assert!(text.contains("&lt;script&gt;alert(&#39;&quot;&amp;\u{fffd}"), "{file} lacks the text");
    }
    let page = fs::read_to_string(to).unwrap();
    assert_eq!(page.matches("<td>&lt;script").count(), 4, "the reason, the setting twice, and the environment");
}

#[test]
fn runs_are_compared_by_what_differs() {
    let parent = tempdir().unwrap();
    let [first, second] = ["0001", "0002"].map(|name| copy(&parent, name));
    edit(&second.join("config.toml"), "learning_rate = 0.1", "learning_rate = 0.4");
    edit(&second.join("config.toml"), "output_dir = \"\"", "output_dir = \"elsewhere\"");
    let page = page(&[first, second]);

    let differences = page.split("<h2>Settings that differ</h2>").nth(1).unwrap().split("</section>").next().unwrap();
    assert_eq!(differences.matches("<tr>").count(), 2, "a header and one setting, for output_dir is a run's own");
    assert!(differences.contains("optim.learning_rate</th><td>0.1</td><td>0.4</td>"));
    assert!(page.contains("Loss: validation, by epoch: 0001 from"));
    assert!(page.contains("<h2>Evaluation of 0002</h2>"));
}

#[test]
fn runs_of_one_name_go_by_their_paths() {
    let parents = [tempdir().unwrap(), tempdir().unwrap()];
    let runs = parents.each_ref().map(|parent| copy(parent, "0001"));
    let page = page(&runs);
    for run in runs {
        assert!(page.contains(&format!("<h2>Evaluation of {}</h2>", run.display())));
    }
}

#[test]
fn time_is_told_by_phase_and_what_lies_in_it() {
    let run = Run::read(&FIXTURE).unwrap();
    let find = |thread: &str, path: &[&str]| {
        let phase = run.phases.iter().find(|phase| phase.thread == thread && phase.path == path);
        phase.unwrap_or_else(|| panic!("no {path:?} in {thread}"))
    };
    let wait = find("replica 1", &["step", "reduce", "wait"]);
    assert_eq!(wait.calls, 20);
    assert!((wait.seconds - 20.0 * 0.0025).abs() < 1e-9);
    let (step, validate) = (find("replica 0", &["step"]), find("replica 0", &["validate"]));
    assert!((step.share + validate.share - 1.0).abs() < 1e-9);
    let paths: Vec<String> = run.phases.iter().take(4).map(|phase| phase.path.join("/")).collect();
    assert_eq!(paths, ["step", "step/backward", "step/forward", "step/reduce"], "the longest first");
}
