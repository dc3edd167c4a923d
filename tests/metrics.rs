//! The metrics room: what is measured, and what arrives at files, terminals and pipes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use indicatif::ProgressDrawTarget;
use kiln::metrics::meter::{Curve, LogLines};
use kiln::metrics::{
    Bar, Console, Csv, EpochRecord, Goal, Jsonl, Record, Sink, StepRecord, Summary, Throughput, format_duration,
    peak_memory,
};
use proptest::prelude::*;
use screen::Screen;
use tempfile::tempdir;

mod screen;
mod stragglers;
mod utilization;

const GOAL: Goal = Goal { epochs: 50, steps: 19_550 };

pub fn step(step: usize) -> StepRecord {
    StepRecord {
        step,
        epoch: step as f64 / 391.0,
        loss: 1.2345,
        accuracy: 0.567,
        lr: 0.05,
        grad_norm: 1.234,
        images_per_second: Some(1234.4),
        step_seconds: 0.05,
        memory: None,
        traffic: None,
        seconds: step as f64 / 2.0,
    }
}

pub fn epoch(epoch: usize) -> EpochRecord {
    EpochRecord {
        epoch,
        step: epoch * 391,
        train_loss: 1.1,
        train_accuracy: 0.612,
        val_loss: 1.2,
        val_accuracy: 0.567,
        val_top5: 0.951,
        lr: 0.0004,
        images_per_second: Some(5.25),
        seconds: 3_720.0,
    }
}

fn records(path: &Path) -> Vec<Record> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn no_cell_of_a_table_is_a_formula_and_numbers_stay() {
    let cells = ["=A1", "+1+2", "-1+2", "@sum(A1)", "\t=A1", "\r=A1", "-0.5", "+1e-3", "a=b", "1-2", "", "-inf", "'x"];
    let bytes = kiln::metrics::csv::table([cells.map(String::from)]);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(bytes.as_slice());
    let row = reader.records().next().unwrap().unwrap();
    let expected =
        ["'=A1", "'+1+2", "'-1+2", "'@sum(A1)", "'\t=A1", "'\r=A1", "-0.5", "+1e-3", "a=b", "1-2", "", "-inf", "'x"];
    assert_eq!(row.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn every_record_is_one_tagged_line_of_json() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let mut sink = Jsonl::open(&path, 0, 0).unwrap();
    sink.record(&Record::Step(step(391))).unwrap();
    // Nothing waits in a buffer: the line is there while the sink is still open.
    assert!(fs::read_to_string(&path).unwrap().starts_with(r#"{"kind":"step","step":391,"#));
    sink.record(&Record::Epoch(epoch(1))).unwrap();
    assert_eq!(records(&path), [Record::Step(step(391)), Record::Epoch(epoch(1))]);
}

#[test]
fn a_step_without_a_rate_says_so_everywhere() {
    let (dir, screen) = (tempdir().unwrap(), Screen::default());
    let [jsonl, csv] = ["metrics.jsonl", "metrics.csv"].map(|name| dir.path().join(name));
    let mut sinks: Vec<Box<dyn Sink>> = vec![
        Box::new(Jsonl::open(&jsonl, 0, 0).unwrap()),
        Box::new(Csv::open(&csv, 0).unwrap()),
        Box::new(Console::new(screen.clone(), GOAL, 1)),
    ];
    for sink in &mut sinks {
        sink.record(&Record::Step(StepRecord { images_per_second: None, ..step(1) })).unwrap();
        sink.record(&Record::Epoch(EpochRecord { images_per_second: None, ..epoch(1) })).unwrap();
    }
    assert!(matches!(
        records(&jsonl)[..],
        [
            Record::Step(StepRecord { images_per_second: None, .. }),
            Record::Epoch(EpochRecord { images_per_second: None, .. })
        ]
    ));
    assert!(fs::read_to_string(&csv).unwrap().ends_with(",0.0004,,3720.0\n"));
    assert!(screen.lines().iter().all(|line| line.contains("     ? img/s")), "{:?}", screen.lines());
}

#[test]
fn a_curve_keeps_few_points_of_a_long_run() {
    let mut curve = Curve::new(4);
    for x in 1..=4 {
        curve.add(f64::from(x), f64::from(x));
    }
    assert_eq!(curve.points(), [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)]);
    curve.add(5.0, f64::NAN);
    for x in 6..=1_000 {
        curve.add(f64::from(x), 7.0);
    }
    let points = curve.points();
    assert!(points.len() <= 4 && points.is_sorted() && points.last() == Some(&(points[points.len() - 1].0, 7.0)));
    assert!(points[0].1 > 2.5 && points[0].1 < 7.0);
}

#[test]
fn a_loss_that_is_no_number_survives_json() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    Jsonl::open(&path, 0, 0).unwrap().record(&Record::Step(StepRecord { loss: f64::NAN, ..step(1) })).unwrap();
    assert!(matches!(records(&path)[..], [Record::Step(StepRecord { loss, .. })] if loss.is_nan()));
}

proptest! {
    #[test]
    fn a_resumed_run_writes_each_step_once_wherever_it_was_killed(
        written in 1..30usize, resumed in 0..30usize, cut in 1..100usize,
    ) {
        let dir = tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let resumed = resumed.min(written - 1);
        let mut sink = Jsonl::open(&path, 0, 0).unwrap();
        (1..=written).for_each(|n| sink.record(&Record::Step(step(n))).unwrap());
        let uninterrupted = fs::read_to_string(&path).unwrap();
        fs::write(&path, &uninterrupted[..uninterrupted.len() - cut]).unwrap();
        let mut sink = Jsonl::open(&path, resumed, resumed).unwrap();
        (resumed + 1..=written).for_each(|n| sink.record(&Record::Step(step(n))).unwrap());
        prop_assert_eq!(fs::read_to_string(&path).unwrap(), uninterrupted);
    }
}

#[test]
fn the_table_of_epochs_has_one_header_and_each_epoch_once_after_a_resume() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("metrics.csv");
    let mut sink = Csv::open(&path, 0).unwrap();
    (1..=3).for_each(|n| sink.record(&Record::Epoch(epoch(n))).unwrap());
    sink.record(&Record::Step(step(1_200))).unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    assert!(whole.starts_with("epoch,step,train_loss,train_accuracy,val_loss,val_accuracy,val_top5,lr,"));
    for cut in [0, 1, 20] {
        fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        let mut sink = Csv::open(&path, 391).unwrap();
        (2..=3).for_each(|n| sink.record(&Record::Epoch(epoch(n))).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
    }
    let rows: Vec<EpochRecord> = csv::Reader::from_path(&path).unwrap().deserialize().map(Result::unwrap).collect();
    assert_eq!(rows, [epoch(1), epoch(2), epoch(3)]);
}

#[test]
fn a_new_run_starts_with_empty_files_and_garbage_is_dropped() {
    let dir = tempdir().unwrap();
    let (jsonl, csv) = (dir.path().join("m.jsonl"), dir.path().join("m.csv"));
    for garbage in [&b"\xff\x00\nnull\n{\"step\":-1}\n[]\n"[..], b"a,b\n1,2\n", b"step\n\"1\n", b"step,x\n7,1\n1\n"] {
        fs::write(&jsonl, garbage).unwrap();
        fs::write(&csv, garbage).unwrap();
        Jsonl::open(&jsonl, 5, 5).unwrap();
        Csv::open(&csv, 5).unwrap();
        assert_eq!((fs::read(&jsonl).unwrap().len(), fs::read(&csv).unwrap().len()), (0, 0));
    }
}

#[test]
fn a_last_line_without_its_end_is_not_trusted_even_if_it_can_be_read() {
    let dir = tempdir().unwrap();
    let (jsonl, csv) = (dir.path().join("m.jsonl"), dir.path().join("m.csv"));
    let mut sinks: [Box<dyn Sink>; 2] =
        [Box::new(Jsonl::open(&jsonl, 0, 0).unwrap()), Box::new(Csv::open(&csv, 0).unwrap())];
    sinks.iter_mut().for_each(|sink| (1..=2).for_each(|n| sink.record(&Record::Epoch(epoch(n))).unwrap()));
    for path in [&jsonl, &csv] {
        let text = fs::read_to_string(path).unwrap();
        fs::write(path, text.trim_end()).unwrap();
    }
    Jsonl::open(&jsonl, 9_999, 9_999).unwrap();
    Csv::open(&csv, 9_999).unwrap();
    assert_eq!(records(&jsonl), [Record::Epoch(epoch(1))]);
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 2);
}

#[test]
fn a_metrics_file_that_cannot_be_written_is_named() {
    let dir = tempdir().unwrap();
    let error = Jsonl::open(dir.path(), 0, 0).map(drop).unwrap_err().to_string();
    assert!(error.contains(&dir.path().display().to_string()), "{error}");
}

#[test]
fn plain_lines_are_aligned_and_hold_no_escape_sequence() {
    let screen = Screen::default();
    let mut console = Console::new(screen.clone(), GOAL, 1);
    for n in [1, 2, 1_173, 1_174, 19_550] {
        console.record(&Record::Step(step(n))).unwrap();
    }
    let lines = screen.lines();
    assert_eq!(lines.len(), 5);
    assert_eq!(
        lines[2],
        "epoch  3/50  step  1173/19550  loss  1.2345  acc  56.7 %  lr 0.0500  grad   1.23    1234 img/s  eta  2h33m"
    );
    assert!(lines[0].starts_with("epoch  1/50  step     1/19550") && lines[0].ends_with("eta      ?"));
    assert!(lines[3].starts_with("epoch  4/50") && lines[4].ends_with("eta     0s"));
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{lines:#?}");
    assert!(!screen.text().chars().any(|c| c.is_control() && c != '\n'));
}

#[test]
fn an_epoch_has_a_line_with_its_validation() {
    let screen = Screen::default();
    let mut console = Console::new(screen.clone(), GOAL, 0);
    console.record(&Record::Epoch(epoch(3))).unwrap();
    let line = "epoch  3/50  step  1173/19550  train  1.1000  61.2 %  val  1.2000  56.7 %  top5  95.1 %  lr   4e-4";
    assert_eq!(screen.lines(), [format!("{line}     5.2 img/s  time  1h02m")]);
}

#[test]
fn on_a_narrow_terminal_a_line_leaves_out_what_matters_least() {
    let screen = Screen::default();
    for columns in [|| 110, || 80, || 40] {
        let mut console = Console::new(screen.clone(), GOAL, 1).within(columns);
        console.record(&Record::Step(step(1_173))).unwrap();
        console.record(&Record::Epoch(epoch(3))).unwrap();
    }
    let lines = screen.lines();
    assert_eq!(
        lines,
        [
            "epoch  3/50  step  1173/19550  loss  1.2345  acc  56.7 %  lr 0.0500  grad   1.23    1234 img/s  eta      ?",
            "epoch  3/50  train  1.1000  61.2 %  val  1.2000  56.7 %  top5  95.1 %     5.2 img/s  time  1h02m",
            "epoch  3/50  loss  1.2345  acc  56.7 %    1234 img/s  eta      ?",
            "epoch  3/50  train  1.1000  61.2 %  val  1.2000  56.7 %  time  1h02m",
            "epoch  3/50  loss  1.2345  acc  56.7 %    1234 img/s  eta      ?",
            "epoch  3/50  train  1.1000  61.2 %  val  1.2000  56.7 %  time  1h02m",
        ]
    );
}

#[test]
fn lines_come_every_n_steps_or_about_every_two_seconds_and_at_the_end() {
    let goal = Goal { epochs: 1, steps: 11 };
    for (log_every, expected) in [(5, vec![5, 10, 11]), (0, vec![1, 5, 9, 11]), (100, vec![11])] {
        let screen = Screen::default();
        let mut console = Console::new(screen.clone(), goal, log_every);
        (1..=11).for_each(|n| console.record(&Record::Step(step(n))).unwrap());
        let step_of = |line: &String| line.split("step").nth(1).unwrap().split('/').next().unwrap().trim().parse();
        let steps: Vec<usize> = screen.lines().iter().map(|line| step_of(line).unwrap()).collect();
        assert_eq!(steps, expected, "log_every {log_every}");
    }
}

#[test]
fn a_closed_pipe_or_terminal_silences_the_console_and_does_not_end_the_run() {
    let (pipe, terminal) = (Screen::broken(), Screen::broken());
    let bar = Bar::on(ProgressDrawTarget::term_like(Box::new(terminal)), GOAL);
    let mut sinks: [Box<dyn Sink>; 2] = [Box::new(Console::new(pipe.clone(), GOAL, 1)), Box::new(bar)];
    for sink in &mut sinks {
        for n in 1..4 {
            sink.record(&Record::Step(step(n))).unwrap();
            sink.validating(1, 2).unwrap();
            sink.record(&Record::Epoch(epoch(n))).unwrap();
        }
        sink.finish().unwrap();
    }
    assert_eq!(pipe.lines().len(), 1);
}

#[test]
fn the_bar_shows_the_run_the_validation_and_a_line_per_epoch() {
    let screen = Screen::default();
    let mut bar = Bar::on(ProgressDrawTarget::term_like(Box::new(screen.clone())), GOAL);
    bar.record(&Record::Step(step(1_173))).unwrap();
    bar.validating(1, 2).unwrap();
    bar.record(&Record::Epoch(epoch(3))).unwrap();
    bar.finish().unwrap();
    for part in ["train", "1173/19550  loss  1.2345", "validate", "1/2", "epoch  3/50  step  1173/19550  train"] {
        assert!(screen.text().contains(part), "{part} in {}", screen.text());
    }
}

#[test]
fn durations_are_shown_with_their_two_largest_units() {
    let table = [(0.0, "0s"), (42.4, "42s"), (59.6, "1m00s"), (187.0, "3m07s"), (3_599.5, "1h00m"), (3_720.0, "1h02m")];
    for (seconds, text) in table.into_iter().chain([(183_600.0, "2d03h"), (-1.0, "0s"), (f64::INFINITY, "?")]) {
        assert_eq!(format_duration(seconds), text);
    }
}

#[test]
fn throughput_forgets_what_lies_before_its_window() {
    let mut pace = Throughput::new(10.0);
    assert_eq!((pace.rate(), pace.eta(5)), (None, None));
    pace.mark(100.0, 6_400);
    assert_eq!(pace.rate(), None);
    pace.mark(102.0, 6_464);
    assert_eq!((pace.rate(), pace.eta(64)), (Some(32.0), Some(2.0)));
    (1..=20).for_each(|n| pace.mark(102.0 + n as f64, 6_464 + 8 * n));
    assert_eq!(pace.rate(), Some(8.0));
    pace.mark(222.0, 6_724);
    assert_eq!(pace.rate(), Some(1.0));
}

#[test]
fn the_peak_of_memory_covers_what_was_touched() {
    let block = vec![1u8; 64 << 20];
    assert!(peak_memory().unwrap() > block.iter().step_by(4_096).map(|b| u64::from(*b) * 4_096).sum());
}

#[test]
fn the_summary_says_what_came_out_and_how_to_look_at_it_again() {
    let summary = Summary {
        epochs: 50,
        steps: 19_550,
        best: Some((0.951, 47)),
        last: Some(0.948),
        seconds: 3_720.0,
        images_per_second: Some(1_234.4),
        session_steps: 19_550,
        peak_memory: Some(3 << 29),
        checkpoint: Some("runs/0001/checkpoints/best".into()),
        left_out: 2,
        environment: BTreeMap::new(),
        complete: true,
    };
    let expected = "trained     50 epochs, 19550 steps in 1h02m\nthroughput  1234 images/s\nmemory      1.50 GiB peak\nleft out    2 damaged images\nbest        95.1 % validation accuracy, epoch 47\nlast        94.8 % validation accuracy\ncheckpoint  runs/0001/checkpoints/best\nevaluate    train evaluate --checkpoint runs/0001";
    assert_eq!(summary.to_string(), expected);
    let resumed = Summary { session_steps: 550, ..summary.clone() };
    assert!(resumed.to_string().contains("throughput  1234 images/s over the last 550 steps\n"), "{resumed}");
    let validated = Summary { images_per_second: None, session_steps: 0, ..summary.clone() };
    assert!(!validated.to_string().contains("throughput"), "{validated}");
    let spaced = Summary { checkpoint: Some("my 'run'/best".into()), best: None, last: None, ..summary };
    assert!(spaced.to_string().ends_with(r"--checkpoint 'my '\''run'\''/best'"), "{spaced}");
}

#[test]
fn a_line_is_folded_between_words_and_goes_on_under_its_text() {
    let folded = |text: &str| kiln::metrics::line::folded(text, 30);
    assert_eq!(folded("data        of ten classes"), "data        of ten classes");
    assert_eq!(
        folded("data        synthetic images of ten classes, drawn"),
        "data        synthetic images\n            of ten classes,\n            drawn"
    );
    assert_eq!(folded("a line of just thirty columns!"), "a line of just thirty columns!");
    let path = format!("output      {}", "runs/".repeat(20));
    assert_eq!(folded(&path), format!("output\n            {}", "runs/".repeat(20)), "a path stays whole");
    assert_eq!(folded("ä ö ü ä ö ü ä ö ü ä ö ü ä ö ü ä ö").lines().count(), 2);
    assert_eq!(folded("\nclass   images\ncat          5"), "\nclass   images\ncat          5");
}

#[test]
fn a_log_gets_a_line_after_two_seconds_and_then_every_ten() {
    let mut lines = LogLines::default();
    let due: Vec<_> = (0..40).filter_map(|at| lines.after(f64::from(at), 10 * at as u64, 1000)).collect();
    assert_eq!(
        due,
        ["20 of 1000, eta 1m38s", "120 of 1000, eta 1m28s", "220 of 1000, eta 1m18s", "320 of 1000, eta 1m08s"]
    );
}

#[test]
fn work_that_is_done_or_quick_gets_none() {
    let mut lines = LogLines::default();
    assert_eq!([lines.after(1.9, 1, 2), lines.after(30.0, 2, 2)], [None, None]);
    assert_eq!(LogLines::default().after(3.0, 5, 9), Some("5 of 9".into()), "one moment has no rate");
}
