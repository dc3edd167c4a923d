//! What is written: the numbers in the files are those that were measured, and whatever they hold stays text.

use std::collections::BTreeMap;
use std::fs;

use kiln::report::{png, svg};
use kiln::study::finding::text::{StepRow, TrialRow};
use kiln::study::finding::{Analysis, RangeTest, Suggestion, Trial, charts, page};
use serde_json::Value;
use tempfile::tempdir;

use super::{about, analysed, probes, tested, too_large};

/// The cells of the rows of the table with this caption, as text.
fn cells(page: &str, caption: &str) -> Vec<Vec<String>> {
    let table = page.split(&format!("<p class=\"caption\">{caption}")).nth(1).unwrap();
    let rows = table.split("</table>").next().unwrap().split("<tr>").skip(2);
    let cell = |cell: &str| cell.rsplit('>').next().unwrap().to_string();
    rows.map(|row| row.split("</t").map(cell).take_while(|it| !it.contains('\n')).collect()).collect()
}

fn tile(page: &str, name: &str) -> String {
    let value = page.split(&format!("<dt>{name}</dt><dd>")).nth(1).unwrap_or_else(|| panic!("no tile {name}"));
    value.split('<').next().unwrap().to_string()
}

#[test]
fn every_step_of_the_test_is_in_the_files_to_the_last_bit() {
    let (directory, test) = (tempdir().unwrap(), tested());
    let to = directory.path().join("new/place");
    test.write(&to, &about()).unwrap();

    let mut reader = csv::Reader::from_path(to.join("find-lr.csv")).unwrap();
    let rows: Vec<StepRow> = reader.deserialize().map(|row| row.unwrap()).collect();
    assert_eq!(rows.len(), 142);
    for (at, (row, probe)) in rows.iter().zip(&test.probes).enumerate() {
        assert_eq!((row.step, row.learning_rate.to_bits()), (at + 1, probe.rate.to_bits()));
        assert!(row.loss == probe.loss || row.loss.is_nan() && probe.loss.is_nan());
        assert_eq!(row.averaged_loss, test.averaged.get(at).map(|it| it.loss));
        assert_eq!(row.averaged_learning_rate, test.averaged.get(at).map(|it| it.rate));
    }
    let json: Value = serde_json::from_slice(&fs::read(to.join("find-lr.json")).unwrap()).unwrap();
    let read: Suggestion = serde_json::from_value(json["suggestion"].clone()).unwrap();
    assert_eq!(Ok(read), test.verdict);
    assert_eq!(json["probes"].as_array().unwrap().len(), 142);
    assert_eq!(
        (json["probes"][3]["loss"].as_f64(), json["probes"][140]["loss"].is_null()),
        (Some(test.probes[3].loss), true)
    );
    assert_eq!((json["growth"].as_f64(), json["about"]["device"].as_str()), (Some(4.0), Some("a <script>\"&")));

    let figure = charts::loss(&test).figure();
    assert_eq!(fs::read_to_string(to.join("find-lr.svg")).unwrap(), svg::file(&figure));
    assert_eq!(fs::read(to.join("find-lr.png")).unwrap(), png::file(&figure));
    assert_eq!(fs::read_to_string(to.join("find-lr.html")).unwrap(), page::learning_rate(&test, &about()));
    assert_eq!(fs::read_dir(&to).unwrap().count(), 5);
}

#[test]
fn the_page_of_a_test_shows_its_suggestion_and_its_steps() {
    let test = tested();
    let it = test.verdict.unwrap();
    let page = page::learning_rate(&test, &about());
    assert_eq!(tile(&page, "--learning-rate"), it.learning_rate.to_string());
    assert!(page.contains("times 4 by schedule.lr_scaling"));
    let near = |text: &str, value: f64, part: f64| {
        let shown: f64 = text.parse().unwrap();
        assert!((shown / value - 1.0).abs() < part, "{text} is not {value}");
    };
    for (name, value) in [("For all replicas", it.effective), ("Minimum", it.minimum), ("Steepest", it.steepest)] {
        near(&tile(&page, name), value, 0.06);
    }
    let rows = cells(&page, "Every step");
    assert_eq!(rows.len(), 142);
    for (row, probe) in rows[..140].iter().zip(&test.probes) {
        near(&row[1], probe.rate, 1e-3);
        near(&row[2], probe.loss, 1e-4);
    }
    assert_eq!(rows[140][2..5], ["NaN", "-", "-"]);
    assert_eq!(rows[141][2], "inf");
}

#[test]
fn a_test_that_proves_nothing_has_a_page_that_says_so() {
    let (directory, flat) = (tempdir().unwrap(), probes(100, 1e-6, 1e-2, |_| 2.3));
    let test = RangeTest::new(&flat, 1.0).unwrap();
    test.write(directory.path(), &about()).unwrap();
    let page = fs::read_to_string(directory.path().join("find-lr.html")).unwrap();
    assert!(page.contains("<li>no suggestion: the loss never fell; try a wider range with --to 0.1"));
    assert!(!page.contains("<h2>Suggestion</h2>") && page.contains("<h2>Curve</h2>"));
    let json: Value = serde_json::from_slice(&fs::read(directory.path().join("find-lr.json")).unwrap()).unwrap();
    assert!(json["notes"][0].as_str().unwrap().starts_with("no suggestion: ") && json["suggestion"].is_null());
}

#[test]
fn every_trial_is_in_the_files_to_the_last_bit() {
    let (directory, analysis) = (tempdir().unwrap(), analysed());
    analysis.write(directory.path(), &about()).unwrap();
    let file = |ending: &str| directory.path().join(format!("find-batch-size.{ending}"));

    let mut reader = csv::Reader::from_path(file("csv")).unwrap();
    let rows: Vec<TrialRow> = reader.deserialize().map(|row| row.unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row.batch_size).collect::<Vec<_>>(), [8, 16, 32, 64, 128, 256]);
    assert_eq!((rows[3].images_per_second, rows[3].memory_bytes, rows[3].fits), (Some(975.25), Some(1800 << 20), true));
    assert_eq!((rows[5].images_per_second, rows[5].of_the_best, rows[5].fits), (None, None, false));
    assert_eq!(rows[5].why, "<img src=x onerror=alert(1)> \"&' \u{7}");
    let json: Value = serde_json::from_slice(&fs::read(file("json")).unwrap()).unwrap();
    let read: Vec<Trial> = serde_json::from_value(json["trials"].clone()).unwrap();
    assert_eq!(Analysis::new(read, json["memory_limit"].as_u64()).unwrap(), analysis);
    assert_eq!((json["suggestion"].as_u64(), json["largest"].as_u64()), (Some(64), Some(128)));

    let figure = charts::main(&analysis);
    assert_eq!(fs::read_to_string(file("svg")).unwrap(), svg::file(&figure));
    assert_eq!(fs::read(file("png")).unwrap(), png::file(&figure));
    assert_eq!(fs::read_to_string(file("html")).unwrap(), page::batch_size(&analysis, &about()));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 5);
}

#[test]
fn the_page_of_batch_sizes_shows_every_trial() {
    let page = page::batch_size(&analysed(), &about());
    let rows = cells(&page, "Every batch size that was tried");
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[3][..4], ["64", "975.2", "99.5 %", "1.76 GiB"]);
    assert_eq!(rows[5][..4], ["256", "too large", "-", "-"]);
    assert_eq!(rows[5][4], "&lt;img src=x onerror=alert(1)&gt; &quot;&amp;&#39; \u{fffd}");
    assert_eq!((tile(&page, "--batch-size"), tile(&page, "Largest that fits")), ("64".into(), "128".into()));
    assert_eq!((tile(&page, "Best throughput"), tile(&page, "Memory per image")), ("980.0".into(), "12.50 MiB".into()));
}

#[test]
fn nothing_that_fits_has_pages_and_pictures_too() {
    let directory = tempdir().unwrap();
    Analysis::new(vec![too_large(1, "")], None).unwrap().write(directory.path(), &BTreeMap::new()).unwrap();
    let page = fs::read_to_string(directory.path().join("find-batch-size.html")).unwrap();
    assert!(page.contains("no suggestion: a batch of 1") && !page.contains("<h2>Suggestion</h2>"));
}

#[test]
fn whatever_the_settings_hold_stays_text_and_nothing_is_fetched() {
    let evil = "<script>alert('\"&\u{1}".to_string();
    let about = BTreeMap::from([(evil.clone(), evil)]);
    for page in [page::learning_rate(&tested(), &about), page::batch_size(&analysed(), &about)] {
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains(['\u{1}', '\u{7}']));
        assert_eq!(page.matches("&lt;script&gt;alert(&#39;&quot;&amp;\u{fffd}").count(), 2, "the name and the value");
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("url("));
        assert!(page.contains("default-src 'none'"));
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named_and_nothing_is_left_there() {
    let directory = tempdir().unwrap();
    fs::create_dir(directory.path().join("find-lr.html")).unwrap();
    let error = tested().write(directory.path(), &about()).unwrap_err().to_string();
    assert!(error.contains("find-lr.html") && error.lines().count() == 1, "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
