//! The dashboard in a real pseudo-terminal: what a person sees and presses, and the terminal that is left to the shell.

mod pty;

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kiln::metrics::panel::Panel;
use kiln::metrics::{EpochRecord, GenerationRecord, Goal, ReplicaRecord, ReplicasRecord, StartRecord, StepRecord};
use kiln_system::stop::{Reason, Stop};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use crate::command::{Workplace, rounds, until};
use crate::metrics;
use crate::terminal::pty::{ENTER, LEAVE, Pty, SHOW_CURSOR};

const CTRL_C: &[u8] = b"\x03";
/// A run that ends by no means of its own before a test does.
const ENDLESS: [&str; 3] = ["--progress=tui", "--epochs=100000", "--checkpoint-every=never"];
fn is_shown(text: &str, _screen: &str) -> bool {
    text.contains(ENTER)
}

/// The text after the alternate screen, where the terminal is as it was.
#[track_caller]
fn left_as_found(pty: Pty) -> String {
    let (text, is_restored) = pty.close();
    assert!(is_restored, "the modes of the terminal are others");
    let after = text.rsplit_once(LEAVE).expect("the alternate screen was left").1;
    assert!(!after.contains(ENTER) && after.contains(SHOW_CURSOR), "{after:?}");
    after.to_string()
}

#[test]
fn ctrl_c_in_the_dashboard_ends_every_run_in_good_order() {
    let runs = rounds(8);
    let (next, codes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while next.fetch_add(1, Ordering::SeqCst) < runs {
            let (place, mut pty) = (Workplace::new(), Pty::new(80, 24));
            pty.start(place.small("run", &ENDLESS));
            // At once: a key that is pressed while the screen changes must not be lost.
            pty.until(is_shown);
            pty.press(CTRL_C);
            codes.lock().unwrap().push(pty.wait());
            let after = left_as_found(pty);
            assert!(after.contains("stopped by Ctrl-C (SIGINT); continue with --resume"), "{after:?}");
            assert!(place.run("run").has_checkpoint());
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(codes.into_inner().unwrap(), vec![Some(130); runs]);
}

#[test]
fn a_second_key_ends_the_run_at_once_and_restores_the_terminal() {
    let (place, mut pty) = (Workplace::new(), Pty::new(80, 24));
    // A step of this takes seconds: the first key alone would not end it soon.
    let slow = ["--width=64", "--stem=cifar", "--world-size=1", "data.train_size=512", "--batch-size=32"];
    let arguments: Vec<&str> = ENDLESS.into_iter().chain(slow).collect();
    pty.start(place.small("run", &arguments));
    pty.until(|_, screen| screen.contains("q or Ctrl-C: stop after this step and save"));
    pty.press(b"q");
    pty.until(|_, screen| screen.contains("stopping after this step to save; q or Ctrl-C again"));
    pty.press(CTRL_C);
    assert_eq!(pty.wait(), Some(130));
    let after = left_as_found(pty);
    assert!(!after.contains("stopped by") && !place.run("run").has_checkpoint(), "{after:?}");
}

#[test]
fn q_stops_and_saves_as_ctrl_c_does() {
    let (place, mut pty) = (Workplace::new(), Pty::new(80, 24));
    pty.start(place.small("run", &ENDLESS));
    pty.until(is_shown);
    pty.press(b"q");
    assert_eq!(pty.wait(), Some(130));
    assert!(left_as_found(pty).contains("stopped by Ctrl-C (SIGINT)") && place.run("run").has_checkpoint());
}

#[test]
fn the_terminal_is_restored_after_a_signal_an_error_and_the_last_step() {
    let place = Workplace::new();
    let mut pty = Pty::new(80, 24);
    pty.start(place.small("signal", &ENDLESS));
    pty.until(is_shown);
    pty.signal(libc::SIGTERM);
    assert_eq!(pty.wait(), Some(143));
    assert!(left_as_found(pty).contains("stopped by SIGTERM; continue with --resume"));

    let mut pty = Pty::new(80, 24);
    pty.start(place.small("error", &ENDLESS));
    pty.until(is_shown);
    until("its checkpoints can be taken away", || {
        fs::rename(place.path("error/checkpoints"), place.path("gone")).is_ok()
    });
    pty.signal(libc::SIGTERM);
    assert_eq!(pty.wait(), Some(1));
    let after = left_as_found(pty);
    assert!(after.contains("train: cannot create 'error/checkpoints/step-"), "{after:?}");

    let mut pty = Pty::new(80, 24);
    pty.start(place.small("end", &["--progress=auto", "--epochs=2"]));
    assert_eq!(pty.wait(), Some(0));
    let after = left_as_found(pty);
    for part in ["epoch 1/2", "epoch 2/2", "trained     2 epochs, 8 steps"] {
        assert!(after.contains(part), "{part} in {after:?}");
    }
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_plain_lines() {
    let place = Workplace::new();
    for term in ["dumb", ""] {
        let mut pty = Pty::new(80, 24);
        let mut command = place.small("run", &["--progress=auto", "--epochs=1", "--max-steps=2"]);
        command.env("TERM", term).arg(format!("--output-dir=of-{term}"));
        pty.start(command);
        assert_eq!(pty.wait(), Some(0));
        let (text, is_restored) = pty.close();
        assert!(is_restored && text.contains("epoch 1/1") && !text.contains('\x1b'), "{text:?}");
        let mut pty = Pty::new(80, 24);
        let mut command = place.small("refused", &["--progress=tui"]);
        pty.start({
            command.env("TERM", term);
            command
        });
        assert_eq!(pty.wait(), Some(2));
        let text = pty.close().0;
        assert!(text.contains("TERM other than 'dumb'") && text.contains("--progress plain"), "{text:?}");
    }
}

#[test]
fn without_colours_nothing_is_coloured_bold_or_underlined() {
    let styles = |no_color: &str| {
        let (place, mut pty) = (Workplace::new(), Pty::new(80, 24));
        let mut command = place.small("run", &["--progress=tui", "--epochs=2"]);
        command.env("NO_COLOR", no_color);
        pty.start(command);
        assert_eq!(pty.wait(), Some(0));
        let text = pty.close().0;
        let sequences = text.split("\x1b[").skip(1).filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';')?;
            rest[end..].starts_with('m').then(|| rest[..end].to_string())
        });
        // What goes back to the terminal's own style is no style.
        sequences.filter(|it| !["", "0", "39", "49", "59", "39;49"].contains(&it.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(styles("1"), [""; 0]);
    assert!(!styles("").is_empty());
}

const GOAL: Goal = Goal { epochs: 50, steps: 19_550 };
const DATA: &str = "cifar10 in data: 50000 training and 10000 validation images of 32x32, 10 classes";

fn shown(panel: &Panel, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let lines = ["generation 2  4 processes".to_string(), format!("train: warning: {}", "x".repeat(60))];
    terminal.draw(|frame| panel.draw(frame, &lines)).unwrap();
    terminal.backend().to_string()
}

fn panel_of_a_run(stop: Stop) -> Panel {
    let mut panel = Panel::new(GOAL, stop);
    for step in 1_100..=1_200 {
        let images_per_second = (step > 1_100).then_some(1234.4);
        let loss = 900.0 / step as f64;
        panel.step(&StepRecord { loss, images_per_second, step_seconds: 0.5, ..metrics::step(step) });
    }
    panel.epoch(&EpochRecord { val_loss: 0.7, val_accuracy: 0.583, ..metrics::epoch(3) });
    panel.start(&StartRecord {
        step: 0,
        epochs: GOAL.epochs,
        steps: GOAL.steps,
        directory: "runs/0007".into(),
        settings: String::new(),
        about: [("data", DATA), ("", "a note"), ("model", "ResNet-18, CIFAR stem, 11.17 M parameters, f32")]
            .map(|(name, words)| (name.to_string(), words.to_string()))
            .into(),
        command: String::new(),
        date: String::new(),
    });
    panel.generation(&GenerationRecord {
        generation: 2,
        step: 1_000,
        members: 4,
        why: String::new(),
        pause_seconds: None,
        seconds: 1.0,
    });
    panel
}

#[test]
fn the_dashboard_has_all_numbers_in_eighty_columns_and_twenty_four_rows() {
    let panel = panel_of_a_run(Stop::new());
    for (width, height) in [(80, 24), (200, 60)] {
        let text = shown(&panel, width, height);
        for part in [
            "step 1200/19550",
            "epoch 4/50",
            "6.1 %   elapsed 10m00s   eta 2h32m",
            "loss           0.7500",
            "accuracy       56.7 %",
            "learning rate  0.0500",
            "gradient norm  1.23",
            "images/s       1234",
            "Epoch 3",
            "val loss       0.7000",
            "val accuracy   58.3 %",
            "val top-5      95.1 %",
            "train loss     1.1000",
            "train accuracy 61.2 %",
            "step 1100",
            "0.818",
            "runs/0007",
            "ResNet-18",
            "generation 2, 4 processes",
            "warning: xxx",
            "q or Ctrl-C: stop after this step and save",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}

fn replica(replica: usize, waited_minute: f64) -> ReplicaRecord {
    let host = format!("node{}", replica / 2);
    let (work_seconds, loading_seconds) = (0.25, 0.125);
    ReplicaRecord { replica, host, work_seconds, loading_seconds, waited_minute, waited: 200.0, ..Default::default() }
}

#[test]
fn the_dashboard_says_whom_replicas_wait_for() {
    let mut panel = panel_of_a_run(Stop::new());
    let record = |waited: [f64; 4]| ReplicasRecord {
        step: 1,
        replicas: waited.into_iter().enumerate().map(|(number, waited)| replica(number, waited)).collect(),
        members: Vec::new(),
        seconds: 1.0,
    };
    panel.replicas(&record([0.2, 0.9, 0.0, 0.3]));
    assert!(!shown(&panel, 80, 24).contains("wait "), "that is nothing");
    panel.replicas(&record([0.2, 12.4, 0.0, 0.3]));
    let text = shown(&panel, 80, 24);
    assert!(text.contains("wait 12 s/min: replica 1 "), "{text}");
    let text = shown(&panel, 200, 50);
    let row = |of: &str| {
        text.lines().position(|line| line.contains(of) && line.contains("device 0")).unwrap_or_else(|| panic!("{text}"))
    };
    assert!(row("replica 1  ") < row("replica 3  ") && row("replica 3  ") < row("replica 0  "), "{text}");
    let of = text.lines().nth(row("replica 1  ")).unwrap();
    for part in ["node0, device 0", "250.0 ms a step,  50 % of it loading", "12.4 s/min, 3m20s"] {
        assert!(of.contains(part), "{part} in {of}");
    }
}

#[test]
fn no_number_of_the_dashboard_is_cut_or_broken() {
    let panel = panel_of_a_run(Stop::new());
    let numbers = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"./x-%".contains(c));
        words.filter(|it| it.starts_with(|c: char| c.is_ascii_digit())).map(String::from).collect()
    };
    let all = numbers(&format!("{DATA} ResNet-18 11.17 1 2 3 4"));
    let of_run = |text: &str| -> Vec<String> {
        let rows = text.lines().skip(5).take(5);
        rows.flat_map(|row| numbers(row.rsplit('\u{2502}').nth(1).unwrap())).collect()
    };
    for width in 80..200 {
        let text = shown(&panel, width, 24);
        let shown = of_run(&text);
        assert!(!shown.is_empty() && shown.iter().all(|number| all.contains(number)), "{shown:?} in\n{text}");
    }
    let text = shown(&panel, 200, 50);
    assert!(text.contains(DATA) && text.contains("11.17 M parameters, f32"), "there is room for all of it: {text}");
    let message = "train: warning: the loss of step 123456 is 7890123 on replica 45 of 678";
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    for before in 0..80 {
        let lines = [format!("{} {message}", "y".repeat(before))];
        terminal.draw(|frame| panel.draw(frame, &lines)).unwrap();
        let text = terminal.backend().to_string();
        for number in ["123456", "7890123", "45", "678"] {
            assert!(text.contains(number), "{number} after {before} in\n{text}");
        }
    }
}

#[test]
fn the_dashboard_says_what_it_is_waiting_for() {
    let stop = Stop::new();
    let mut panel = panel_of_a_run(stop.clone());
    panel.validating(3, 4);
    assert!(shown(&panel, 80, 24).contains("validation           █"));
    stop.request(Reason::Signal(libc::SIGINT));
    assert!(shown(&panel, 80, 24).contains("again: end at once"));
}

#[test]
fn no_size_of_a_terminal_and_no_number_breaks_the_dashboard() {
    let new = Panel::new(Goal { epochs: 0, steps: 0 }, Stop::new());
    let mut odd = panel_of_a_run(Stop::new());
    for loss in [f64::NAN, f64::INFINITY, 1e300, -1.0] {
        let record = StepRecord {
            step: usize::MAX,
            epoch: f64::NAN,
            loss,
            accuracy: loss,
            lr: loss,
            grad_norm: loss,
            images_per_second: Some(loss),
            step_seconds: loss,
            memory: None,
            traffic: None,
            seconds: loss,
        };
        odd.step(&record);
        for (width, height) in [(1, 1), (3, 2), (20, 5), (40, 12), (80, 24), (500, 200)] {
            shown(&new, width, height);
            shown(&odd, width, height);
        }
    }
}
