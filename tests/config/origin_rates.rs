//! Words of other trainers that set a schedule: the rate of every step is the one that they set there.

use std::path::Path;

use kiln_engine::optim::Schedule;

use super::coming_from::{PYTORCH, SAME, TIMM};
use super::config;
use crate::python::ask;

const STEPS_PER_EPOCH: usize = 4;

/// Kiln's rates of all steps of a run with one replica.
fn rates(line: &str) -> Vec<f64> {
    let config = config(&line.split_whitespace().collect::<Vec<_>>());
    let lengths = [config.run.epochs, STEPS_PER_EPOCH];
    let schedule = Schedule::new(&config.schedule, config.optim.learning_rate, 1, 1, lengths);
    (0..schedule.total_steps).map(|step| schedule.at(step)).collect()
}

/// Compares with the rates of all epochs.
#[track_caller]
fn hold(line: &str, expected: &[f64]) {
    let ours = rates(line);
    assert_eq!(ours.len(), expected.len() * STEPS_PER_EPOCH, "{line}");
    for (step, rate) in ours.into_iter().enumerate() {
        let there = expected[step / STEPS_PER_EPOCH];
        assert!((rate - there).abs() <= 1e-12, "{line}: {rate} in step {step}, not {there}");
    }
}

/// The words of the guide's table from `source` that set a schedule.
fn rows(source: &str) -> Vec<&'static str> {
    let schedule = |line: &str| config(&line.split_whitespace().collect::<Vec<_>>()).schedule;
    let sets = |(from, theirs, _): &&(&str, &str, &str)| *from == source && schedule(theirs) != schedule("");
    SAME.iter().filter(sets).map(|(_, theirs, _)| *theirs).collect()
}

/// `line` and those of `options` whose flags it does not have.
fn with(line: &str, options: &[&str]) -> String {
    let flag = |option: &str| option.split(' ').next().unwrap_or_default().to_string();
    let missing = options.iter().filter(|option| line.split(' ').all(|word| word != flag(option)));
    missing.fold(line.to_string(), |line, option| format!("{line} {option}"))
}

#[test]
fn torchvisions_words_set_the_rates_that_torchvision_has() {
    let mut lines = Vec::new();
    for scheduler in ["steplr", "cosineannealinglr", "exponentiallr"] {
        let scheduler = format!("--lr-scheduler {scheduler}");
        let methods = ["--lr-warmup-method linear", "--lr-warmup-method constant", "--lr-step-size 30"];
        for method in methods {
            let others = [&scheduler, "--lr-warmup-epochs 3", method, "--lr 0.08", "--epochs 95"];
            lines.extend(rows(PYTORCH).into_iter().map(|row| with(row, &others)));
        }
        for warmup in
            ["", "--lr-warmup-epochs 2", "--lr-warmup-epochs 2 --lr-warmup-method linear --lr-warmup-decay 0.1"]
        {
            lines.push(format!("{scheduler} --lr-step-size 2 --lr-gamma 0.5 {warmup} --lr 0.08 --epochs 6"));
        }
    }
    // Without a word for the scheduler it is steplr.
    lines.push("--lr-step-size 2 --lr-warmup-epochs 2 --lr 0.08 --epochs 6".into());
    lines.push("--lr-gamma 0.5 --lr 0.08 --epochs 65".into());
    assert!(lines.len() > 40, "{lines:#?}");
    let Some(found) = ask("torch", "schedules.py", &lines.iter().map(Path::new).collect::<Vec<_>>()) else { return };
    let theirs: Vec<Vec<f64>> = serde_json::from_str(&found).unwrap();
    assert_eq!(theirs.len(), lines.len());
    lines.iter().zip(&theirs).for_each(|(line, theirs)| hold(line, theirs));
}

/// Words of timm, and the rates of timm 1.0.31: `create_scheduler_v2` for SGD with these words, `num_epochs=8` and,
/// with a warm-up, `warmup_lr=0.0008`.
const OF_TIMM: &[(&str, [f64; 8])] = &[
    (
        "--sched cosine",
        [
            0.08,
            0.07695518130045147,
            0.0682842712474619,
            0.0553073372946036,
            0.04,
            0.024692662705396412,
            0.011715728752538101,
            0.0030448186995485306,
        ],
    ),
    (
        "--sched cosine --min-lr 0.008 --warmup-epochs 3",
        [
            0.0008,
            0.0272,
            0.0536,
            0.05777660356514324,
            0.044,
            0.03022339643485677,
            0.018544155877284293,
            0.010740336829593678,
        ],
    ),
    ("--sched step --decay-epochs 3 --decay-rate 0.1", [0.08, 0.08, 0.08, 0.008, 0.008, 0.008, 0.0008, 0.0008]),
    (
        "--sched step --decay-epochs 2 --decay-rate 0.5 --warmup-epochs 3",
        [0.0008, 0.0272, 0.0536, 0.04, 0.02, 0.02, 0.01, 0.01],
    ),
];

#[test]
fn timms_words_set_the_rates_that_timm_has() {
    for (line, theirs) in OF_TIMM {
        hold(&format!("{line} --lr 0.08 --epochs 8"), theirs);
    }
    let set = |word: &str| word == "--opt" || OF_TIMM.iter().any(|(line, _)| line.contains(word));
    for row in rows(TIMM) {
        assert!(row.split(' ').filter(|word| word.starts_with("--")).all(set), "no rates prove '{row}'");
    }
    assert_eq!(rows(TIMM).len(), 2);
    assert_eq!(config(&["--sched", "step"]).schedule.step_epochs, 90, "timm's default");
}

#[test]
fn a_schedule_of_others_has_a_warm_up_only_where_one_is_asked_for() {
    let epochs = |line: &[&str]| config(line).schedule.warmup_epochs;
    assert_eq!(epochs(&["--lr-scheduler", "steplr"]), 0.0);
    assert_eq!(epochs(&["--sched", "cosine", "--epochs", "10"]), 0.0);
    assert_eq!(epochs(&["--sched", "cosine", "--warmup-epochs", "5"]), 5.0);
    assert_eq!(epochs(&["experiment=cifar10", "--lr-scheduler", "steplr"]), epochs(&["experiment=cifar10"]));
}
