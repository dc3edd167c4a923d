//! Words of other trainers that set a schedule: the rate of every step is the one that they set there.

use std::path::Path;

use kiln_engine::optim::Schedule;

use super::config;
use super::spellings::{Row, TABLE};
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
    let sets = |[from, theirs, _]: &&Row| *from == source && schedule(theirs) != schedule("");
    TABLE.same.iter().filter(sets).map(|[_, theirs, _]| *theirs).collect()
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
            lines.extend(rows("PyTorch, torchvision").into_iter().map(|row| with(row, &others)));
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

#[test]
fn timms_words_set_the_rates_that_timm_has() {
    let mut lines: Vec<String> = [
        "--sched cosine --warmup-epochs 0",
        "--sched cosine --min-lr 0.008 --warmup-epochs 3 --warmup-lr 0.0008",
        "--sched step --decay-epochs 2 --decay-rate 0.5 --warmup-epochs 3 --warmup-lr 0.002",
        "--sched multistep --decay-milestones 3 6 --warmup-epochs 0",
        "--sched multistep --epochs 190 --warmup-epochs 0",
        "--sched poly --decay-rate 2 --min-lr 0.01 --warmup-epochs 3 --warmup-lr 1e-5",
    ]
    .map(String::from)
    .into();
    lines.extend(rows("timm").into_iter().filter(|row| row.contains("--sched")).map(String::from));
    let lines: Vec<_> =
        lines.iter().map(|line| with(line, &["--lr 0.08", "--epochs 8", "--warmup-epochs 0"])).collect();
    // The optimizer's word means nothing to the factory of schedules.
    let asked: Vec<_> = lines.iter().map(|line| line.replace("--opt momentum ", "")).collect();
    assert!(lines.len() > 7, "{lines:#?}");
    let arguments: Vec<_> = asked.iter().map(Path::new).collect();
    let Some(found) = ask("timm", "timm_schedules.py", &arguments) else { return };
    let theirs: Vec<Vec<f64>> = serde_json::from_str(&found).unwrap();
    lines.iter().zip(&theirs).for_each(|(line, theirs)| hold(line, theirs));
    // All of timm's defaults.
    let whole = ["--lr 0.3", "--lr 0.3 --sched step --epochs 95", "--lr 0.3 --sched poly --epochs 20"];
    let Some(found) = ask("timm", "timm_schedules.py", &whole.map(Path::new)) else { return };
    let theirs: Vec<Vec<f64>> = serde_json::from_str(&found).unwrap();
    whole.iter().zip(&theirs).for_each(|(line, theirs)| hold(&format!("--as timm x {line}"), theirs));
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
