//! What is written: the numbers in the files are those of the measurements.

use std::collections::BTreeMap;
use std::fs;

use kiln::report::{png, svg};
use kiln::study::scaling::{Analysis, Measurement, Mode, Row, charts, page, table};
use serde_json::Value;
use tempfile::tempdir;

use super::{analysed, measured, varied};

/// The cells of all rows of the tables whose caption begins so, as text.
fn cells(page: &str, caption: &str) -> Vec<Vec<String>> {
    let caption = format!("<p class=\"caption\">{caption}");
    let tables = page.split(&caption).skip(1);
    let rows = tables.flat_map(|table| {
        table.split("</table>").next().unwrap().split("<tr>").skip(2).map(|row| {
            let cells = row.split("</t").filter(|cell| cell.contains("class=\"number\"") || cell.contains("scope"));
            cells.map(|cell| cell.rsplit('>').next().unwrap().to_string()).collect()
        })
    });
    rows.collect()
}

fn number(cell: &str) -> f64 {
    let (value, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let factor = match unit {
        "%" => 0.01,
        "ms" => 1e-3,
        "\u{b5}s" => 1e-6,
        _ => 1.0,
    };
    value.parse::<f64>().unwrap_or_else(|_| panic!("'{cell}' is no number")) * factor
}

#[test]
fn the_numbers_of_the_page_are_those_of_the_measurements() {
    let all = varied();
    let page = page::page(&analysed(&all));
    let (mut rows, mut weak) = (cells(&page, "Weak scaling, 1 process,"), cells(&page, "Weak scaling, 2 processes,"));
    assert_eq!((rows.len(), weak.len()), (4, 3));
    rows.append(&mut weak);
    rows.append(&mut cells(&page, "Strong scaling"));
    assert_eq!(rows.len(), all.len());
    let places = [(Mode::Weak, 1), (Mode::Weak, 2), (Mode::Strong, 1)];
    let order = places.iter().flat_map(|place| all.iter().filter(move |it| (it.mode, it.processes) == *place));
    for (row, it) in rows.iter().zip(order) {
        let base = all.iter().find(|base| base.mode == it.mode && base.replicas == 1).unwrap();
        // The fixture has its median last.
        let (seconds, base_seconds) = (it.step_seconds[2], base.step_seconds[2]);
        let rate = it.images_per_step as f64 / seconds;
        let speed_up = rate / (base.images_per_step as f64 / base_seconds);
        let near = |cell: &str, value: f64| assert!((number(cell) / value - 1.0).abs() < 6e-3, "{cell} is not {value}");
        assert_eq!(row[0], it.replicas.to_string());
        assert_eq!(row[1], "own");
        near(&row[2], rate);
        let (low, high) = row[3].split_once(" to ").unwrap();
        near(low, it.images_per_step as f64 / (1.05 * seconds));
        near(high, it.images_per_step as f64 / (0.95 * seconds));
        near(&row[4], seconds);
        near(&row[5], speed_up);
        near(&row[6], speed_up / it.replicas as f64);
        assert!((number(&row[7]) - 0.02 * (it.replicas as f64).log2()).abs() < 6e-4, "{}", row[7]);
        assert_eq!(row[8], format!("{}.00 GiB", it.replicas));
    }
}

#[test]
fn the_predictions_of_the_page_are_those_of_the_analysis() {
    let analysis = analysed(&varied());
    let page = page::page(&analysis);
    let rows = cells(&page, "Predicted");
    let predictions: Vec<_> = analysis.curves.iter().flat_map(|curve| &curve.predictions).collect();
    assert_eq!((rows.len(), predictions.len()), (6, 6), "16 and 64 of three curves, 8 is measured");
    for (row, it) in rows.iter().zip(predictions) {
        assert_eq!(row[0], it.replicas.to_string());
        for (at, it) in [(1, it.images_per_second), (3, it.step_seconds), (5, it.efficiency)] {
            let near =
                |cell: &str, value: f64| assert!((number(cell) - value).abs() < 6e-3 * value + 6e-4, "{cell}, {value}");
            near(&row[at], it.value);
            match it.range {
                None => assert_eq!(row[at + 1], "-"),
                Some([a, b]) => {
                    let (low, high) = row[at + 1].split_once(" to ").unwrap();
                    near(low, a);
                    near(high, b);
                }
            }
        }
    }
}

#[test]
fn the_tiles_are_the_best_rate_the_efficiencies_and_the_serial_fraction() {
    let exact: Vec<Measurement> = [1, 2, 4, 8].map(|p| measured(Mode::Strong, p, 1, 0.1 + 0.9 / p as f64)).into();
    let page = page::page(&analysed(&exact));
    let tile = |name: &str| {
        let value = page.split(&format!("<dt>{name}</dt><dd>")).nth(1).unwrap_or_else(|| panic!("no tile {name}"));
        value.split('<').next().unwrap().to_string()
    };
    assert_eq!(tile("Best throughput"), format!("{:.0}", 256.0 / 0.2125));
    assert_eq!(tile("Strong efficiency"), format!("{:.1} %", 100.0 / 0.2125 / 8.0));
    assert_eq!(tile("Serial fraction"), "10.0 %");
    assert!(!page.contains("Weak"));
}

#[test]
fn all_files_are_written_and_can_be_read_again() {
    let (directory, all) = (tempdir().unwrap(), varied());
    let analysis = analysed(&all);
    let to = directory.path().join("new/place");
    analysis.write(&to).unwrap();

    let mut reader = csv::Reader::from_path(to.join("scaling.csv")).unwrap();
    let rows: Vec<Row> = reader.deserialize().map(|row| row.unwrap()).collect();
    assert_eq!(rows, analysis.rows, "to the last bit");
    assert_eq!(rows.len(), all.len());
    let json: Value = serde_json::from_slice(&fs::read(to.join("scaling.json")).unwrap()).unwrap();
    let read: Vec<Measurement> = serde_json::from_value(json["measurements"].clone()).unwrap();
    let again = Analysis::new(read, analysis.about.clone()).unwrap();
    assert_eq!(again.to_string(), analysis.to_string());
    assert_eq!(json["about"]["device"], "a <script>\"&");
    assert_eq!(json["curves"][0]["predictions"][0]["replicas"], 16);

    let figure = charts::main(&analysis.curves);
    assert_eq!(fs::read_to_string(to.join("scaling.svg")).unwrap(), svg::file(&figure));
    assert_eq!(fs::read(to.join("scaling.png")).unwrap(), png::file(&figure));
    assert_eq!(fs::read_to_string(to.join("scaling.html")).unwrap(), page::page(&analysis));
    assert_eq!(fs::read_dir(&to).unwrap().count(), 5);
}

#[test]
fn a_place_that_cannot_be_written_is_named_and_nothing_is_left_there() {
    let directory = tempdir().unwrap();
    fs::create_dir(directory.path().join("scaling.html")).unwrap();
    let error = analysed(&varied()).write(directory.path()).unwrap_err().to_string();
    assert!(error.contains("scaling.html") && error.lines().count() == 1, "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn whatever_the_settings_hold_stays_text_and_nothing_is_fetched() {
    let evil = "<script>alert('\"&\u{1}".to_string();
    let page = page::page(&Analysis::new(varied(), BTreeMap::from([(evil.clone(), evil)])).unwrap());
    assert!(!page.contains("<script") && !page.contains('\u{1}'));
    assert_eq!(page.matches("&lt;script&gt;alert(&#39;&quot;&amp;\u{fffd}").count(), 2, "the name and the value");
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("url(") && !page.contains("src="));
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_chart_has_marks_where_it_was_measured_and_dashes_beyond() {
    use kiln::report::chart::{Anchor, Shape};
    use kiln::report::palette::Ink;
    let curves = analysed(&[1, 2, 4].map(|p| measured(Mode::Weak, p, 1, 0.2 + 0.01 * p as f64))).curves;
    let charts = charts::charts(&curves);
    assert_eq!(charts.len(), 3);
    let figure = charts[0].figure();
    let plotted =
        figure.shapes.iter().filter(|it| matches!(it, Shape::Dot([x, y], Ink::Whole(0)) if *x > 0.0 && *y > 48.0));
    assert_eq!(plotted.count(), 3);
    let dashed = figure.shapes.iter().filter(|it| matches!(it, Shape::Line(_, Ink::Dashed(0))));
    assert_eq!(dashed.count(), 1);
    let is_tick = |it: &&Shape| matches!(it, Shape::Text(_, Anchor::Middle, text, _) if text.parse::<usize>().is_ok());
    let ticks: Vec<String> = figure
        .shapes
        .iter()
        .filter(is_tick)
        .map(|it| if let Shape::Text(_, _, text, _) = it { text.clone() } else { String::new() })
        .collect();
    assert_eq!(ticks, ["1", "2", "4", "8", "16", "32", "64"]);
    assert!(charts[0].words().starts_with("Weak scaling: images/s, by replicas: measured from "));
    assert!(figure.shapes.iter().all(|it| !matches!(it, Shape::Text(_, _, text, _) if text == "epoch")));
}

#[test]
fn csv_has_a_header_and_no_row_is_lost() {
    let text = String::from_utf8(table::csv(&analysed(&varied()).rows)).unwrap();
    let head = "mode,replicas,processes,devices_shared,steps,images_per_step,step_seconds,step_seconds_q1,\
                step_seconds_q3,images_per_second,speed_up,efficiency,exposed_communication,exposed_share,memory_bytes";
    assert_eq!(text.lines().next(), Some(head));
    assert_eq!(text.lines().count(), 1 + varied().len());
    assert!(text.lines().nth(1).unwrap().starts_with("weak,1,1,false,3,32,0.1923,"));
}
