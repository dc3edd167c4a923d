//! A run that is damaged, half-written or hardly there.

use std::fs;

use kiln::report::evaluation::Evaluation;
use kiln::report::{self, Run};
use tempfile::tempdir;

use super::{FILES, FIXTURE, copy, edit, page, tile};

#[test]
fn a_place_without_a_run_is_one_clear_line() {
    let parent = tempdir().unwrap();
    let to = parent.path().join("report.html");
    for (place, what) in [("missing", "is not a directory"), (".", "holds no run")] {
        let error = report::write(&[parent.path().join(place)], &to).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("as in runs/0001"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
    assert!(report::write(&[], &to).is_err());
    assert!(!to.exists());
}

#[test]
fn any_one_file_is_enough() {
    for file in FILES {
        let parent = tempdir().unwrap();
        let directory = copy(&parent, "0001");
        FILES.iter().filter(|other| **other != file).for_each(|other| fs::remove_file(directory.join(other)).unwrap());
        let page = page(&[directory]);
        for other in ["metrics.jsonl", "summary.json", "config.toml"] {
            assert_eq!(page.contains(&format!("there is no {other}")), other != file, "{other} with only {file}");
        }
    }
}

#[test]
fn a_damaged_file_is_named_and_the_rest_is_shown() {
    for (file, part) in
        [("summary.json", "Environment"), ("evaluation.json", "Evaluation"), ("trace.json", "Where time went")]
    {
        for damage in [&b"{\"a\":"[..], b"", b"7", b"\xff\xfe\0", b"{\"steps\":-1,\"traceEvents\":7,\"classes\":3}"] {
            let parent = tempdir().unwrap();
            let directory = copy(&parent, "0001");
            fs::write(directory.join(file), damage).unwrap();
            let page = page(&[directory]);
            assert!(page.contains(&format!("<li>{file} is damaged and not shown: ")), "{file} with {damage:?}");
            assert!(!page.contains(&format!("<h2>{part}</h2>")) && page.contains("<h2>Curves</h2>"));
        }
    }
}

#[test]
fn a_directory_in_place_of_a_file_is_named() {
    for file in FILES {
        let parent = tempdir().unwrap();
        let directory = copy(&parent, "0001");
        fs::remove_file(directory.join(file)).unwrap();
        fs::create_dir(directory.join(file)).unwrap();
        assert!(page(&[directory]).contains(&format!("<li>{file} cannot be read: ")), "{file}");
    }
}

#[test]
fn a_log_may_be_cut_off_anywhere() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    let log = directory.join("metrics.jsonl");
    let whole = fs::read(&log).unwrap();
    for length in (0..whole.len()).step_by(151) {
        fs::write(&log, &whole[..length]).unwrap();
        let run = Run::read(&directory).unwrap();
        let lines = whole[..length].iter().filter(|byte| **byte == b'\n').count();
        let records = run.steps.len() + run.epochs.len() + run.generations.len();
        let is_cut = run.notes.iter().any(|note| note.contains("is incomplete"));
        let ends_whole = length == 0 || whole[length - 1] == b'\n';
        assert_eq!((records, is_cut), (lines, !ends_whole), "at {length}");
    }
}

#[test]
fn lines_that_are_no_records_are_counted() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    edit(&directory.join("metrics.jsonl"), "{\"kind\":\"step\",\"step\":3,", "{\"kind\":\"stop\",\"step\":3,");
    edit(&directory.join("metrics.jsonl"), "\"step\":9,", "\"step\":-9,");
    let page = page(&[directory]);
    assert!(
        page.contains("2 of 128 lines of metrics.jsonl are not records and are skipped, the first is line 4"),
        "{page}"
    );
}

#[test]
fn a_summary_is_not_the_last_word_of_a_run_that_went_on() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    edit(&directory.join("summary.json"), "\"steps\": 120", "\"steps\": 60");
    edit(&directory.join("summary.json"), "812.4", "99.0");
    let page = page(&[directory]);
    assert!(page.contains("the run continued after its summary at step 60"));
    assert_eq!(tile(&page, "Steps"), "120");
    assert_eq!(tile(&page, "Throughput"), "640", "that of the last epoch");
}

#[test]
fn an_evaluation_that_contradicts_itself_loses_those_parts() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    edit(&directory.join("evaluation.json"), "\"airplane\",", "");
    edit(&directory.join("evaluation.json"), "iVBORw0KGgo", "iVBORw0K\\\"><b>");
    let page = page(&[directory]);
    assert!(page.contains("the confusion matrix does not have a row and a column per class"));
    assert!(page.contains("some samples are not PNG images of a known class"));
    assert!(!page.contains("<img") && page.contains("Top-1 accuracy"));
}

#[test]
fn the_matrix_of_an_earlier_version_is_shown_as_its_pairs_are() {
    let parent = tempdir().unwrap();
    let directory = copy(&parent, "0001");
    let whole = page(std::slice::from_ref(&directory));
    let text = fs::read(directory.join("evaluation.json")).unwrap();
    let mut evaluation: Evaluation = serde_json::from_slice(&text).unwrap();
    let cells: u64 = evaluation.matrix.iter().flatten().sum();
    assert!(cells > 0 && evaluation.check().is_empty());
    assert_eq!(evaluation.confusion.iter().map(|pair| pair.2).sum::<u64>(), cells);
    assert!(evaluation.confusion.iter().all(|pair| pair.2 > 0), "only pairs that occur");
    let text = serde_json::to_string(&evaluation).unwrap();
    assert!(text.contains("\"pairs\":[[0,0,") && !text.contains("\"confusion\""), "{text}");
    fs::write(directory.join("evaluation.json"), text).unwrap();
    assert_eq!(page(&[directory]), whole);
}

#[test]
fn pairs_of_classes_that_are_not_listed_are_left_out() {
    for pair in ["[3,0,1]", "[0,3,1]"] {
        let text = format!("{{\"classes\":[\"a\",\"b\",\"c\"],\"pairs\":[[0,0,5],{pair}]}}");
        let mut evaluation: Evaluation = serde_json::from_str(&text).unwrap();
        assert_eq!(evaluation.check().len(), 1, "{pair}");
        assert!(evaluation.confusion.is_empty() && evaluation.scores().is_empty());
    }
}

#[test]
fn absurd_numbers_are_drawn_or_left_out() {
    let line = |step: &str, value: &str| {
        format!(
            "{{\"kind\":\"step\",\"step\":{step},\"epoch\":{value},\"loss\":{value},\"accuracy\":{value},\"lr\":{value},\
             \"grad_norm\":{value},\"images_per_second\":{value},\"step_seconds\":{value},\"seconds\":{value}}}\n"
        )
    };
    let values = ["0", "-0.0", "1e308", "-1e308", "3e38", "-3e38", "1e-320", "1e-38", "1", "1.0000000001", "-5"];
    for a in values {
        for b in values {
            let parent = tempdir().unwrap();
            let log = [line("0", a), line("18446744073709551615", b)].concat();
            fs::write(parent.path().join("metrics.jsonl"), log).unwrap();
            report::write(&[parent.path().into()], &parent.path().join("report.html")).unwrap();
            let text = fs::read_to_string(parent.path().join("curves.svg")).unwrap();
            assert!(!text.contains("NaN") && !text.contains("inf,") && !text.contains("\"inf"), "{a} and {b}");
        }
    }
}

#[test]
fn an_absurd_trace_ends_in_time() {
    let parent = tempdir().unwrap();
    let spans: Vec<String> = (0..20_000)
        .map(|at| {
            format!(
                "{{\"name\":\"n{at}\",\"ph\":\"X\",\"ts\":{at},\"dur\":{}}}",
                if at % 7 == 0 { -1.0 } else { 1e308 }
            )
        })
        .collect();
    fs::write(parent.path().join("trace.json"), format!("{{\"traceEvents\":[{}]}}", spans.join(","))).unwrap();
    let run = Run::read(parent.path()).unwrap();
    assert_eq!(run.phases.len(), 16, "deeper phases count as part of the innermost");
}

#[test]
fn a_report_that_cannot_be_written_says_where() {
    let parent = tempdir().unwrap();
    fs::write(parent.path().join("file"), "").unwrap();
    for (to, named) in [("file/report.html", "file'"), (".", parent.path().to_str().unwrap())] {
        let error = report::write(std::slice::from_ref(&*FIXTURE), &parent.path().join(to)).unwrap_err().to_string();
        assert!(error.contains(named) && error.lines().count() == 1, "{error}");
    }
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "nothing else was written");
}
