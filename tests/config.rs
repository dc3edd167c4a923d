//! The way from what a user types to what runs: layers, groups, flags, and every refusal on the way.
//!
//! Most tests go through the command line, as a user does; only the environment is handed in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kiln::cli::{Cli, Command};
use kiln::config::ParallelConfig;
use kiln::config::schema;
use kiln::config::{Config, Request, Resolved, Saved, resolve, time_limit};
use kiln_data::Source;
use kiln_engine::checkpoint::Interval;
use kiln_engine::optim::{LrScaling, OptimizerKind};
use kiln_engine::parallel::StrategyKind;
use kiln_system::Error;
use kiln_training::Stem;
use proptest::prelude::*;

mod coming_from;
mod command_line;
mod elastic;
mod implied;
mod interpolation;
mod option_files;
mod origin_defaults;
mod origin_rates;
mod origins;
mod processes;
mod refusals;
mod script_flags;
mod script_words;
mod spellings;

const DEFAULT_TOML: &str = include_str!("../config/default.toml");

fn request(line: &[&str]) -> Request {
    match Cli::try_parse_from([&["train"], line].concat()).expect("arguments that clap accepts") {
        Command::Train(options) => options.request,
        other => panic!("'{line:?}' should train, not {other:?}"),
    }
}

fn resolved(line: &[&str]) -> Resolved {
    resolve(&request(line)).expect("a configuration that runs")
}

fn config(line: &[&str]) -> Config {
    resolved(line).config
}

fn refusals(request: &Request) -> Vec<String> {
    match resolve(request) {
        Err(Error::Usage(lines)) => lines,
        other => panic!("{request:?} should be refused, not {other:?}"),
    }
}

fn complaints(line: &[&str]) -> Vec<String> {
    refusals(&request(line))
}

/// The only complaint about a command line.
fn complaint(line: &[&str]) -> String {
    let lines = complaints(line);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.concat()
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn each_layer_beats_the_one_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, seed: u64| write(dir.path(), name, &format!("[run]\nseed = {seed}\n"));
    let (first, second) = (file("first.toml", 1), file("second.toml", 2));
    file("experiment/mine.toml", 3);
    let mut layered = Request { config_dirs: vec![dir.path().into()], ..Request::default() };
    let seed = |request: &Request| resolve(request).unwrap().config.run.seed;

    assert_eq!(seed(&layered), 0, "the default");
    layered.files.push(first);
    assert_eq!(seed(&layered), 1, "--config beats the default");
    layered.files.push(second);
    assert_eq!(seed(&layered), 2, "a later --config beats an earlier one");
    layered.arguments.push("experiment=mine".into());
    assert_eq!(seed(&layered), 3, "a group beats --config");
    layered.environment.push(("TRAIN__RUN__SEED".into(), "4".into()));
    assert_eq!(seed(&layered), 4, "the environment beats a group");
    layered.arguments.insert(0, "run.seed=5".into());
    assert_eq!(seed(&layered), 5, "KEY=VALUE beats the environment");
    layered.arguments.push("run.seed=6".into());
    assert_eq!(seed(&layered), 6, "a later KEY=VALUE beats an earlier one");
    layered.flags = request(&["--seed", "7"]).flags;
    assert_eq!(seed(&layered), 7, "a flag beats KEY=VALUE");
    layered.flags = request(&["--seed", "7", "--seed", "8"]).flags;
    assert_eq!(seed(&layered), 8, "a later flag beats an earlier one");
}

#[test]
fn a_layer_leaves_alone_what_it_does_not_name() {
    let config = config(&["optim=adamw", "optim.beta1=0.8", "--lr", "1e-3"]);
    assert_eq!(config.optim.optimizer, OptimizerKind::AdamW);
    assert_eq!((config.optim.beta1, config.optim.beta2, config.optim.learning_rate), (0.8, 0.999, 1e-3));
    assert_eq!(config.schedule.lr_scaling, LrScaling::Sqrt);
    assert_eq!(config.parallel, ParallelConfig::default());
}

#[test]
fn the_environment_is_read_by_its_prefix_only() {
    let environment = [("TRAIN__OPTIM__LEARNING_RATE", "0.5"), ("HOME", "/root"), ("TRAIN_RUN", "x")];
    let environment = environment.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let config = resolve(&Request { environment, ..Request::default() }).unwrap().config;
    assert_eq!(config.optim.learning_rate, 0.5);
}

#[test]
fn text_is_read_as_what_its_key_holds() {
    for devices in ["parallel.gpu_ids=[0,1]", "parallel.gpu_ids=0,1", "parallel.gpu_ids=[0, 1]"] {
        assert_eq!(config(&[devices, "--world-size", "2"]).parallel.gpu_ids, [0, 1]);
    }
    assert_eq!(config(&["--gpu-ids", "3"]).parallel.gpu_ids, [3]);
    for dir in ["data.dir=/tmp/x", "data.dir=\"/tmp/x\"", "data.dir='/tmp/x'"] {
        assert_eq!(config(&[dir]).data.dir, Path::new("/tmp/x"));
    }
    assert_eq!(config(&["run.output_dir=2024"]).run.output_dir, Path::new("2024"));
    assert_eq!(config(&["--lr", ".5"]).optim.learning_rate, 0.5);
    assert_eq!(config(&["--lr", "1"]).optim.learning_rate, 1.0);
    assert_eq!(config(&["--max-time", "1h"]).run.max_time, Duration::from_secs(3600));
    assert_eq!(config(&["model.stem=imagenet"]).model.stem, Stem::Imagenet);
    assert_eq!(config(&["--checkpoint-every", "500steps"]).checkpoint.every, Interval::Steps(500));
}

#[test]
fn every_built_in_group_is_a_configuration_that_runs() {
    let mut files = 0;
    let root = crate::files::file("config");
    for group in root.read_dir().unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        for file in group.path().read_dir().unwrap().flatten() {
            let name = PathBuf::from(file.file_name());
            if name.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let choice = format!("{}={}", group.file_name().display(), name.file_stem().unwrap().display());
            if choice == "data=parquet" && cfg!(not(feature = "parquet")) {
                assert!(complaint(&[&choice]).contains("--features parquet"), "{choice}");
                continue;
            }
            assert_ne!(config(&[&choice]).to_toml(), "", "{choice}");
            files += 1;
        }
    }
    assert!(files >= 12, "found {files} files below {}", root.display());
}

#[test]
fn a_group_stands_for_its_file_and_the_later_choice_counts() {
    let quickstart = config(&["experiment=quickstart"]);
    assert_eq!((quickstart.data.source, quickstart.model.width), (Source::Synthetic, 16));
    assert_eq!((quickstart.parallel.world_size, quickstart.parallel.gpu_ids), (2, vec![0, 1]));
    let combined = config(&["experiment=quickstart", "data=cifar100", "trainer=dp"]);
    assert_eq!((combined.data.source, combined.parallel.strategy), (Source::Cifar100, StrategyKind::Ddp));
    assert_eq!(config(&["experiment=quickstart", "experiment=cifar10"]), config(&["experiment=cifar10"]));
}

#[test]
fn a_users_directory_adds_groups_and_replaces_built_in_ones() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "optim/sgd.toml", "[optim]\nmomentum = 0.5\n");
    write(dir.path(), "optim/mine.toml", "[optim]\nmomentum = 0.6\n");
    write(dir.path(), "cluster/big.toml", "parallel.world_size = 64\n");
    write(dir.path(), "cluster/bad.toml", "\n[parallel]\nworld_sizes = 64\n");
    let with = |choice: &str| request(&["--config-dir", dir.path().to_str().unwrap(), choice]);
    let momentum = |choice: &str| resolve(&with(choice)).unwrap().config.optim.momentum;
    assert_eq!((momentum("optim=sgd"), momentum("optim=mine"), momentum("optim=lars")), (0.5, 0.6, 0.9));
    assert_eq!(resolve(&with("cluster=big")).unwrap().config.parallel.world_size, 64);
    let line = refusals(&with("cluster=bad")).concat();
    assert!(line.contains(&format!("{}:3", dir.path().join("cluster/bad.toml").display())), "{line}");
    assert!(refusals(&with("optim=mien"))[0].contains("did you mean 'optim=mine'?"));
    assert!(complaint(&["cluster=big"]).contains("unknown key 'cluster'"));
}

#[test]
fn a_development_run_wins_over_files_but_not_over_what_is_typed() {
    let run = |line: &[&str]| {
        let config = config(line);
        (config.run.epochs, config.run.max_steps, config.run.limit_val_batches, config.schedule.warmup_epochs)
    };
    assert_eq!(run(&["--fast-dev-run", "experiment=cifar10"]), (1, 3, 2, 0.0));
    assert_eq!(run(&["run.fast_dev_run=true", "--max-steps", "5", "--warmup-epochs", "0.5"]), (1, 5, 2, 0.5));
    assert_eq!(config(&["--fast-dev-run"]).run.limit_train_batches, 3);
    assert_eq!(resolved(&["--fast-dev-run"]).notes.len(), 1);
}

/// What a file of settings or an experiment says for another choice is no mistake of the command line.
#[test]
fn a_setting_that_the_optimizer_or_the_schedule_does_not_read_is_named() {
    for (line, notes) in [
        (&["--patience-epochs", "3"][..], &["--patience-epochs has no effect with schedule 'cosine'"][..]),
        (
            &["--optimizer", "adamw", "--momentum", "0.8", "optim.alpha=0.9"],
            &[
                "--momentum has no effect with optimizer 'adamw'",
                "argument 'optim.alpha=0.9' has no effect with optimizer 'adamw'",
            ],
        ),
        (&["--lr-scheduler", "steplr", "--lr-gamma", "0.5", "--momentum", "0.8"], &[]),
        (&["--dist-bn", "reduce", "--no-sync-bn", "--world-size", "2"], &[]),
        (&["--dist-bn", "reduce", "--no-sync-bn"], &["--dist-bn has no effect with one replica or --sync-bn"]),
        (&["experiment=cifar10", "--optimizer", "adamw"], &[]),
    ] {
        let mut found = resolved(line).notes;
        found.retain(|note| note.contains("no effect"));
        assert_eq!(found, notes, "{line:?}");
    }
}

#[test]
fn the_default_warm_up_is_shortened_with_the_run_and_says_so() {
    let short = resolved(&["--epochs", "10"]);
    assert_eq!(short.config.schedule.warmup_epochs, 1.0);
    assert!(short.notes[0].contains("--warmup-epochs"), "{:?}", short.notes);
    assert_eq!(config(&["--epochs", "10", "--warmup-epochs", "5"]).schedule.warmup_epochs, 5.0);
    let mut expected = Config::default();
    expected.schedule.warmup_start = 0.01;
    assert_eq!(resolved(&[]), Resolved { config: expected, notes: vec![], given: BTreeSet::new() });
}

#[test]
fn a_resumed_run_keeps_the_warm_up_that_it_has() {
    for line in
        [&["--epochs=20", "--warmup-epochs=5"][..], &["--lr-scheduler=steplr", "--lr-warmup-epochs=5"], &["--epochs=9"]]
    {
        let config = config(line);
        let saved = Saved { path: "config.toml".into(), text: config.to_toml(), older: "", note: None, without: &[] };
        let again = resolve(&Request { saved: Some(saved), ..Request::default() }).unwrap().config;
        assert_eq!(again.schedule, config.schedule, "{line:?}");
    }
}

#[test]
fn a_warm_up_starts_below_the_peak_with_one_replica_too() {
    let start = |line: &[&str]| config(line).schedule.warmup_start;
    assert_eq!(start(&["--warmup-epochs", "5"]), 0.01);
    assert_eq!(start(&["experiment=cifar10"]), 0.01);
    assert_eq!(start(&["--warmup-epochs", "5", "--world-size", "2", "--lr-scaling", "none"]), 0.01);
    assert_eq!(start(&["--warmup-epochs", "5", "--lr-warmup-decay", "0.1"]), 0.1);
    // The defaults, given or not, are one run.
    assert_eq!(config(&[]), config(&["--warmup-epochs", "5"]));
    assert_eq!(config(&["--epochs", "20"]), config(&["--epochs", "20", "--warmup-epochs", "2"]));
    // The rate of one replica.
    assert_eq!(start(&["--warmup-epochs", "5", "--world-size", "2"]), 0.0);
    assert_eq!(start(&["--warmup-epochs", "0"]), 0.0);
    assert_eq!(start(&["--warmup-epochs", "5", "schedule.warmup_start=0"]), 0.0);
}

#[test]
fn what_runs_can_be_printed_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    for line in [&[][..], &["experiment=quickstart", "--resume"], &["--fast-dev-run", "--max-time", "2h30m"]] {
        let config = config(line);
        assert_eq!(toml::from_str::<Config>(&config.to_toml()).unwrap(), config);
        let file = write(dir.path(), "again.toml", &config.to_toml());
        assert_eq!(self::config(&["--config", file.to_str().unwrap()]), config);
    }
}

#[test]
fn the_default_file_holds_every_key_with_the_codes_value_and_a_comment() {
    let written: toml::Table = DEFAULT_TOML.parse().unwrap();
    assert_eq!(written, toml::Table::try_from(Config::default()).unwrap());
    let bare: Vec<_> = schema::keys().filter(|key| schema::meaning(key).len() < 10).collect();
    assert!(bare.is_empty(), "no comment above {bare:?}");
    let vague: Vec<_> = schema::keys().filter(|key| !schema::meaning(key).ends_with('.')).collect();
    assert!(vague.is_empty(), "no whole sentence above {vague:?}");
    let silent = |key: &String| match schema::default(key) {
        Some(toml::Value::String(text)) => text.is_empty() && !schema::meaning(key).contains("empty"),
        _ => false,
    };
    assert_eq!(schema::keys().find(silent), None, "says not what empty means");
}

#[test]
fn the_strategy_follows_the_world_unless_it_is_chosen() {
    let strategy = |line: &[&str]| config(line).parallel.strategy();
    assert_eq!(strategy(&[]), StrategyKind::Single);
    assert_eq!(strategy(&["--world-size", "2"]), StrategyKind::Ddp);
    assert_eq!(strategy(&["--world-size", "2", "--strategy", "dp"]), StrategyKind::Ddp);
}

#[test]
fn times_are_read_in_units_that_fall() {
    let seconds = |text: &str| time_limit::parse(text).map(|time| time.as_secs()).ok();
    assert_eq!(seconds(""), Some(0));
    assert_eq!(seconds("90s"), Some(90));
    assert_eq!(seconds("2h30m"), Some(9000));
    assert_eq!(seconds("1d 1s"), Some(86_401));
    for wrong in ["5", "h", "-1s", "1.5h", "30m2h", "1s1s", "99999999999999999d", "1h!"] {
        assert_eq!(seconds(wrong), None, "{wrong}");
    }
}

#[test]
fn intervals_are_read_in_epochs_and_steps() {
    let read = |text: &str| text.parse::<Interval>().ok();
    assert_eq!(read("never"), Some(Interval::Never));
    assert_eq!(read("1epoch"), Some(Interval::Epochs(1)));
    assert_eq!(read("500 steps"), Some(Interval::Steps(500)));
    for wrong in ["", "1", "steps", "0epochs", "-1epochs", "3never", "1.5epochs", "99999999999999999999steps"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
}

proptest! {
    #[test]
    fn every_time_limit_is_read_back_as_it_was_printed(seconds in 0..u64::MAX / 2) {
        let time = Duration::from_secs(seconds);
        prop_assert_eq!(time_limit::parse(&time_limit::format(time)), Ok(time));
    }
}
