//! The way from what a user types to what runs: layers, groups, flags, and every refusal on the way.
//!
//! Most tests go through the command line, as a user does; only the environment is handed in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::CommandFactory;
use kiln::checkpoint::{Interval, Resume};
use kiln::cli::{Cli, Command};
use kiln::config::flag::{self, Takes};
use kiln::config::schema::Schema;
use kiln::config::{Config, Request, Resolved, resolve, time_limit};
use kiln::data::Source;
use kiln::error::Error;
use kiln::model::Stem;
use kiln::optim::{LrScaling, OptimizerKind};
use kiln::parallel::{ParallelConfig, StrategyKind};
use proptest::prelude::*;

const DEFAULT_TOML: &str = include_str!("../config/default.toml");

fn request(line: &[&str]) -> Request {
    match Cli::try_parse_from([&["train"], line].concat()).expect("arguments that clap accepts") {
        Command::Train(request) => request,
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
fn every_complaint_comes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[optim]\nlearning_rte = 0.1\n\n[parallel]\nworld_size = \"many\"\nbatch_size = 0\n";
    let file = write(dir.path(), "bad.toml", text);
    let file = file.to_str().unwrap();
    let mut bad = request(&["--config", file, "--epochs", "abc", "optim=sdg", "optim.momentum=1", "nonsense"]);
    bad.environment.push(("TRAIN__MODEL__STEM".into(), "vgg".into()));
    let lines = refusals(&bad);
    for expected in [
        format!("unknown key 'optim.learning_rte' ({file}:2); did you mean 'optim.learning_rate'?"),
        format!("got 'many' (parallel.world_size in {file}:5)"),
        format!("got '0' (parallel.batch_size in {file}:6); the default is --batch-size 32"),
        "epochs must be a whole number, at least 1".into(),
        "no 'sdg' in the group 'optim'".into(),
        "momentum must be at least 0 and below 1, got '1' (argument 'optim.momentum=1')".into(),
        "unknown argument 'nonsense'".into(),
        "stem must be one of cifar or imagenet, got 'vgg' (environment TRAIN__MODEL__STEM)".into(),
    ] {
        assert!(lines.iter().any(|line| line.contains(&expected)), "'{expected}' is missing in {lines:#?}");
    }
    assert_eq!(lines.len(), 8, "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains('\n') && !line.ends_with('.')), "{lines:#?}");
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_lines() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "broken.toml", "[run]\nseed = = 1\nepochs = 2\nthreads = 1 2\n");
    let lines = complaints(&["--config", file.to_str().unwrap()]);
    assert!(lines[0].starts_with(&format!("{}:2 is not TOML", file.display())), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(":4 is not TOML")), "{lines:?}");
}

#[test]
fn a_file_that_cannot_be_read_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("latin.toml"), b"# caf\xe9\n").unwrap();
    for (name, reason) in [("nowhere.toml", "there is no such file"), ("latin.toml", "not UTF-8"), ("", "directory")] {
        let path = dir.path().join(name);
        let line = complaint(&["--config", path.to_str().unwrap()]);
        assert!(line.contains(path.to_str().unwrap()) && line.contains(reason), "{line}");
    }
}

#[test]
fn a_key_that_does_not_exist_is_met_with_the_one_that_was_meant() {
    for (argument, meant) in [
        ("batch-size=abc", "did you mean 'parallel.batch_size=abc' or '--batch-size abc'?"),
        ("batch_size=8", "did you mean 'parallel.batch_size=8' or '--batch-size 8'?"),
        ("lr=0.1", "did you mean 'optim.learning_rate=0.1' or '--learning-rate 0.1'?"),
        ("cutout=8", "did you mean 'data.cutout=8'?"),
        ("trainers=ddp", "did you mean 'trainer=ddp'?"),
        ("trainer=dpd", "did you mean 'trainer=ddp'?"),
        ("trainer=horovod", "there is ddp, dp and single; --config-dir DIR adds"),
        ("trainer.devices=8", "did you mean 'parallel.world_size'?"),
        ("trainer.epochs=3", "did you mean 'run.epochs'?"),
        ("trainer.max_epochs=3", "did you mean 'run.epochs'?"),
        ("optim.lr=3", "did you mean 'optim.learning_rate'?"),
        ("optim.momentm=0.9", "did you mean 'optim.momentum'?"),
        ("model.stem=imagnet", "did you mean 'imagenet', as in --stem imagenet?"),
        ("qwerty.uiop=1", "'train config' prints every key"),
        ("evalute", "did you mean 'train evaluate'?"),
    ] {
        let line = complaint(&[argument]);
        assert!(line.contains(meant), "{argument}: {line}");
    }
}

#[test]
fn a_value_that_a_key_cannot_hold_is_refused_with_the_rule_and_a_remedy() {
    for (line, rule) in [
        (["--world-size", "0"], "world size must be at least 1 and at most 1024, got '0' (--world-size)"),
        (["--world-size", "-1"], "world size must be a whole number, at least 1 and at most 1024, got '-1'"),
        (["--batch-size", "abc"], "batch size must be a whole number, at least 1"),
        (["--batch-size", "0"], "batch size must be at least 1"),
        (["--epochs", "0"], "epochs must be at least 1"),
        (["--epochs", "1.5"], "epochs must be a whole number"),
        (["--epochs", "99999999999999999999999"], "epochs must be a whole number"),
        (["--accumulation-steps", "0"], "accumulation steps must be at least 1"),
        (["--seed", "-3"], "seed must be a whole number, at least 0, got '-3'"),
        (["--width", "0"], "width must be at least 1"),
        (["--learning-rate", "0"], "learning rate must be above 0 and finite, got '0'"),
        (["--learning-rate", "nan"], "learning rate must be above 0 and finite, got 'NaN'"),
        (["--lr", "inf"], "learning rate must be above 0 and finite, got 'inf' (--learning-rate)"),
        (["--momentum", "1"], "momentum must be at least 0 and below 1"),
        (["--weight-decay", "-1e-4"], "weight decay must be at least 0"),
        (["--label-smoothing", "1"], "label smoothing must be at least 0 and below 1"),
        (["--ema-decay", "1.0"], "ema decay must be at least 0 and below 1"),
        (["--clip-grad-norm", "-1"], "clip grad norm must be at least 0"),
        (["--warmup-epochs", "-1"], "warmup epochs must be at least 0"),
        (["--timeout", "0"], "timeout must be above 0"),
        (["--timeout", "1e300"], "timeout must be above 0 and at most 1000000"),
        (["--keep-last", "0"], "keep last must be at least 1"),
        (["--checkpoint-every", "0steps"], "such as 1epochs or 500steps, or never, got '0steps'"),
        (["--max-time", "soon"], "must be a time such as 90s, 45m, 2h30m or 1d"),
        (["--progress", "fancy"], "progress must be one of auto, tui, bar, plain or none, got 'fancy'"),
        (["--gpu-ids", "0,x"], "gpu ids must be a list of whole numbers, such as 0,1, got '0,x'"),
        (["--gpu-ids", ""], "gpu ids must name a device, got '[]'"),
        (["--gpu-ids", "0,0"], "gpu ids must be different, got '0' twice (--gpu-ids)"),
        (["--gpu-ids", "0,1"], "use --world-size 2 or fewer --gpu-ids"),
        (["--rank", "1"], "rank must be 0, as all replicas run in one process, got '1'"),
        (["--dist-url", "tcp://node:29500"], "dist url must be empty, as all replicas run in one process"),
        (["optim.beta1=1", "optim.beta2=0"], "beta1 must be at least 0 and below 1"),
        (["optim.beta2=-0.1", "run.seed=1"], "beta2 must be at least 0 and below 1"),
        (["optim.eps=0", "run.seed=1"], "eps must be above 0"),
        (["schedule.gamma=1.5", "run.seed=1"], "gamma must be above 0 and at most 1"),
        (["data.augment=2", "run.seed=1"], "augment must be true or false, got '2'"),
        (["model.num_classes=1", "run.seed=1"], "num classes must be 0 (as many as the data has) or at least 2"),
    ] {
        let complaint = complaint(&line);
        assert!(complaint.contains(rule), "{line:?}: {complaint}");
        assert!(complaint.contains("; "), "no remedy: {complaint}");
    }
}

#[test]
fn values_that_cannot_run_together_are_refused() {
    for (line, rule) in [
        ("--strategy single --world-size 2", "use --strategy ddp or --world-size 1"),
        ("--nesterov --momentum 0", "nesterov must have a momentum above 0"),
        ("--nesterov --optimizer adamw", "nesterov must go with the optimizer sgd"),
        ("--download --data synthetic", "download must go with cifar10 or cifar100, got the data 'synthetic'"),
        ("--warmup-epochs 11 --epochs 10", "warmup epochs must be at most the epochs '10', got '11'"),
        ("--world-size 2 --gpu-ids 0,1,2", "got '3' devices for a world size of '2' (--gpu-ids)"),
    ] {
        let line: Vec<_> = line.split(' ').collect();
        let complaint = complaint(&line);
        assert!(complaint.contains(rule), "{line:?}: {complaint}");
    }
    config(&["--world-size", "4", "--gpu-ids", "0"]);
    config(&["--download", "--nesterov", "--strategy", "dp", "--world-size", "2"]);
}

#[test]
fn a_value_that_is_refused_is_not_judged_together_with_others() {
    let line = complaint(&["--world-size", "many", "--gpu-ids", "0,1"]);
    assert!(line.starts_with("world size must be a whole number"), "{line}");
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    for group in root.read_dir().unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        for file in group.path().read_dir().unwrap().flatten() {
            let name = PathBuf::from(file.file_name());
            let choice = format!("{}={}", group.file_name().display(), name.file_stem().unwrap().display());
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
    assert_eq!((combined.data.source, combined.parallel.strategy), (Source::Cifar100, StrategyKind::Dp));
    assert_eq!(config(&["optim=adamw", "optim=lars"]), config(&["optim=lars"]));
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

#[test]
fn the_default_warm_up_is_shortened_with_the_run_and_says_so() {
    let short = resolved(&["--epochs", "10"]);
    assert_eq!(short.config.schedule.warmup_epochs, 1.0);
    assert!(short.notes[0].contains("--warmup-epochs"), "{:?}", short.notes);
    assert_eq!(config(&["--epochs", "10", "--warmup-epochs", "5"]).schedule.warmup_epochs, 5.0);
    assert_eq!(resolved(&[]), Resolved { config: Config::default(), notes: vec![] });
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
    let schema = Schema::new();
    let bare: Vec<_> = schema.keys().filter(|key| schema.meaning(key).len() < 10).collect();
    assert!(bare.is_empty(), "no comment above {bare:?}");
    let vague: Vec<_> = schema.keys().filter(|key| !schema.meaning(key).ends_with('.')).collect();
    assert!(vague.is_empty(), "no whole sentence above {vague:?}");
    let silent = |key: &String| match schema.default(key) {
        Some(toml::Value::String(text)) => text.is_empty() && !schema.meaning(key).contains("empty"),
        _ => false,
    };
    assert_eq!(schema.keys().find(silent), None, "says not what empty means");
}

#[test]
fn every_flag_stands_for_a_key_and_the_help_explains_it() {
    let schema = Schema::new();
    let help = Cli::command().render_long_help().to_string();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let mut longs = BTreeSet::new();
    for flag in flag::all() {
        assert!(schema.default(flag.key).is_some(), "--{} stands for no key", flag.long);
        assert!(longs.insert(flag.long), "--{} is listed twice", flag.long);
        assert!(help.contains(&format!("--{}", flag.long)), "--{} is missing in the help", flag.long);
        assert!(words(&help).contains(&words(schema.meaning(flag.key))), "--{} is not explained", flag.long);
        assert_eq!(flag.takes == Takes::Choice, !schema.choices(flag.key).is_empty(), "--{}", flag.long);
    }
    assert_eq!(schema.choices("parallel.backend"), ["auto", "flex", "tch", "cuda", "wgpu"]);
    assert_eq!(schema.choices("model.stem"), ["cifar", "imagenet"]);
}

#[test]
fn every_flag_answers_to_both_spellings_and_sets_its_key() {
    let schema = Schema::new();
    for flag in flag::all() {
        let default = schema.default(flag.key).unwrap().to_string();
        let value = default.trim_matches(['"', '[', ']']);
        for long in [flag.long, flag.alias].iter().filter(|long| !long.is_empty()) {
            for name in [long.to_string(), long.replace('-', "_")] {
                let argument = match flag.takes {
                    Takes::Nothing(_) => format!("--{name}"),
                    _ => format!("--{name}={value}"),
                };
                let flags = request(&[&argument]).flags;
                assert_eq!((flags.len(), &*flags[0].key), (1, flag.key), "{argument}");
                let expected = if let Takes::Nothing(on) = flag.takes { on.to_string() } else { value.into() };
                assert_eq!(flags[0].value, expected, "{argument}");
            }
        }
    }
}

#[test]
fn resume_takes_its_target_and_nothing_else() {
    let target = |line: &[&str]| config(line).checkpoint.resume;
    assert_eq!(target(&[]), Resume::Off);
    assert_eq!(target(&["--resume"]), Resume::Latest);
    assert_eq!(target(&["--resume", "latest"]), Resume::Latest);
    assert_eq!(target(&["--resume", "best"]), Resume::Best);
    assert_eq!(target(&["--resume=best", "--seed", "1"]), Resume::Best);
    assert_eq!(target(&["--resume", "runs/0001"]), Resume::Path("runs/0001".into()));
    assert_eq!(target(&["--resume", "runs/lr=0.1/last"]), Resume::Path("runs/lr=0.1/last".into()));
    assert_eq!(target(&["--resume=lr=0.1"]), Resume::Path("lr=0.1".into()));
    assert_eq!(target(&["checkpoint.resume=best"]), Resume::Best);
    for line in [&["--resume", "optim.momentum=0.8"][..], &["optim.momentum=0.8", "--resume"]] {
        assert_eq!(target(line), Resume::Latest);
        assert_eq!(config(line).optim.momentum, 0.8);
    }
    assert_eq!(config(&["--resume", "--seed", "3"]).run.seed, 3);
    assert_eq!(config(&["--resume", "data.dir=/data/x"]).data.dir, Path::new("/data/x"));
}

#[test]
fn a_switch_can_be_taken_back_later_on_the_line() {
    let sync_bn = |line: &[&str]| config(line).parallel.sync_bn;
    assert!(!sync_bn(&["--no-sync-bn"]));
    assert!(!sync_bn(&["--sync-bn", "--no_sync_bn"]));
    assert!(sync_bn(&["--no-sync-bn", "--sync-bn"]));
}

#[test]
fn commands_are_told_apart() {
    let evaluate =
        Cli::try_parse_from(["train", "evaluate", "--checkpoint", "best", "--batch_size", "8", "data=folder"]);
    let Ok(Command::Evaluate { checkpoint, request }) = evaluate else { panic!("{evaluate:?}") };
    assert_eq!((checkpoint, request.flags.len(), request.arguments.len()), ("best".into(), 1, 1));
    let print = Cli::try_parse_from(["train", "config", "--seed", "1", "--config", "a.toml"]);
    assert!(matches!(print, Ok(Command::Config(request)) if request.files == [PathBuf::from("a.toml")]));
    assert!(complaint(&["--seed", "1", "config"]).contains("a command comes before options"));
}

#[test]
fn arguments_that_mean_nothing_end_with_exit_code_two() {
    for line in [
        &["--batch-sze", "3"][..],
        &["--epochs"],
        &["--deterministic=3"],
        &["evaluate"],
        &["evaluate", "--checkpoint", "x", "--epochs", "3"],
    ] {
        let error = Cli::try_parse_from([&["train"], line].concat()).expect_err("nothing such exists");
        assert_eq!(error.exit_code(), 2, "{line:?}");
    }
    assert_eq!(Error::Usage(complaints(&["--epochs", "0"])).exit_code(), 2);
}

#[test]
fn the_strategy_follows_the_world_unless_it_is_chosen() {
    let strategy = |line: &[&str]| config(line).parallel.strategy();
    assert_eq!(strategy(&[]), StrategyKind::Single);
    assert_eq!(strategy(&["--world-size", "2"]), StrategyKind::Ddp);
    assert_eq!(strategy(&["--world-size", "2", "--strategy", "dp"]), StrategyKind::Dp);
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

    #[test]
    fn no_argument_whatever_makes_the_resolver_panic(argument in ".*", key in 0_usize..60) {
        let keys: Vec<_> = Schema::new().keys().collect();
        let arguments = vec![argument.clone(), format!("{}={argument}", keys[key % keys.len()])];
        if let Err(Error::Usage(lines)) = resolve(&Request { arguments, ..Request::default() }) {
            prop_assert!(lines.iter().all(|line| !line.contains('\n')));
        }
    }
}
