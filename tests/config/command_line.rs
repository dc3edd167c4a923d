//! Flags, their spellings, their help, and the commands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use kiln::checkpoint::Resume;
use kiln::cli::{Cli, Command};
use kiln::config::flag::{self, Takes};
use kiln::config::schema::Schema;
use kiln::error::Error;

use super::{complaint, complaints, config, request};

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
        for long in flag.aliases.iter().chain([&flag.long]) {
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
fn pretrained_alone_means_torchvisions_weights() {
    let pretrained = |line: &[&str]| config(line).model.pretrained;
    assert_eq!(pretrained(&["--pretrained"]), "torchvision");
    assert_eq!(pretrained(&["--pretrained", "--seed", "3"]), "torchvision");
    assert_eq!(pretrained(&["--pretrained", "run.seed=3"]), "torchvision");
    assert_eq!(pretrained(&["--pretrained", "weights/resnet18.pth"]), "weights/resnet18.pth");
    assert_eq!(pretrained(&["--pretrained=a.safetensors"]), "a.safetensors");
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
    let Ok(Command::Evaluate { checkpoint, which: None, request }) = evaluate else { panic!("{evaluate:?}") };
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
        &["evaluate", "--checkpoint", "x", "--epochs", "3"],
    ] {
        let error = Cli::try_parse_from([&["train"], line].concat()).expect_err("nothing such exists");
        assert_eq!(error.exit_code(), 2, "{line:?}");
    }
    assert_eq!(Error::Usage(complaints(&["--epochs", "0"])).exit_code(), 2);
}

#[test]
fn completions_and_the_manual_page_know_every_flag() {
    let printed = |line: &[&str]| match Cli::try_parse_from(["train"].iter().chain(line)) {
        Ok(Command::Print(text)) => text,
        other => panic!("{line:?}: {other:?}"),
    };
    for shell in ["bash", "zsh", "fish"] {
        let text = printed(&["completions", shell]);
        for word in ["elastic-timeout", "world-size", "evaluate", "members"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    let manual = printed(&["man"]);
    assert!(manual.contains(".TH train 1"), "{manual}");
    for known in flag::all() {
        assert!(manual.contains(&known.long.replace('-', "\\-")), "{}", known.long);
    }
    assert!(Cli::try_parse_from(["train", "completions", "sh"]).is_err());
}
