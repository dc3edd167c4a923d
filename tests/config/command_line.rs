//! Flags, their spellings, their help, and the commands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use kiln::cli::{Cli, Command};
use kiln::config::flag::{self, Takes};
use kiln::config::schema;
use kiln_engine::checkpoint::Resume;

use super::{complaint, config, refusals, request, resolve};
use crate::command::{Workplace, succeeded};

#[test]
fn every_flag_stands_for_a_key_and_the_help_explains_it() {
    let help = Cli::command().render_long_help().to_string();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let mut longs = BTreeSet::new();
    for flag in flag::all() {
        assert!(schema::default(flag.key).is_some(), "--{} stands for no key", flag.long);
        assert!(longs.insert(flag.long), "--{} is listed twice", flag.long);
        assert!(help.contains(&format!("--{}", flag.long)), "--{} is missing in the help", flag.long);
        assert!(words(&help).contains(&words(schema::meaning(flag.key))), "--{} is not explained", flag.long);
        assert_eq!(flag.takes == Takes::Choice, !schema::choices(flag.key).is_empty(), "--{}", flag.long);
    }
    assert_eq!(schema::choices("parallel.backend"), ["auto", "flex", "tch", "cuda", "wgpu"]);
    assert_eq!(schema::choices("model.stem"), ["cifar", "imagenet"]);
}

#[test]
fn every_flag_answers_to_both_spellings_and_sets_its_key() {
    for flag in flag::all() {
        let default = schema::default(flag.key).unwrap().to_string();
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
    let Ok(Command::Evaluate(evaluate)) = evaluate else { panic!("{evaluate:?}") };
    assert_eq!((evaluate.source.checkpoint.as_path(), evaluate.source.which), (Path::new("best"), None));
    let request = evaluate.options.request;
    assert_eq!((request.flags.len(), request.arguments.len()), (1, 1));
    let mut print = Cli::try_parse_from(["train", "config", "--seed", "1", "--config", "a.toml"]).unwrap();
    assert!(matches!(print, Command::Config(_)) && print.request().unwrap().files == [PathBuf::from("a.toml")]);
    assert!(complaint(&["--seed", "1", "config"]).contains("a command comes before options"));
}

#[test]
fn arguments_that_mean_nothing_end_with_exit_code_two() {
    for line in ["--epochs", "--deterministic=3", "report --epochs=3 x", "export", "find", "man x"] {
        assert_eq!(Cli::try_parse_from(format!("train {line}").split(' ')).unwrap_err().exit_code(), 2, "{line}");
    }
    for line in [["--batch-sze", "3"], ["--epochs", "0"]] {
        assert_eq!(resolve(&request(&line)).unwrap_err().exit_code(), 2, "{line:?}");
    }
}

/// Every line that is said about arguments.
pub(super) fn said(line: &[&str]) -> Vec<String> {
    match Cli::try_parse_from([&["train"], line].concat()) {
        Ok(mut command) => refusals(command.request().unwrap()),
        Err(error) => error.to_string().lines().map(String::from).collect(),
    }
}

#[test]
fn every_fault_of_a_command_line_is_said_at_once() {
    let lines = said(&["--epoch", "3", "--batchsize", "x", "--learning-rate", "fast", "-depth=3", "optim.beta=1"]);
    let expected = [
        "unknown option '--epoch'; did you mean '--epochs 3'?",
        "unknown option '--batchsize'; did you mean '--batch-size'? batch size must be a whole number, at least 1 and at \
         most 1000000, got 'x'",
        "unknown option '-depth'; did you mean '--depth 3'?",
    ];
    assert_eq!(lines[..3], expected);
    assert!(lines[3].starts_with("unknown key 'optim.beta'"), "{lines:#?}");
    assert!(lines[4].starts_with("learning rate must be a number"), "{lines:#?}");
    assert_eq!(lines.len(), 5, "{lines:#?}");
}

#[test]
fn an_option_is_never_met_with_one_that_means_something_else() {
    for option in ["--lr-decay", "--test-dir"] {
        let lines = said(&[option, "0.1"]);
        assert_eq!(lines, [format!("unknown option '{option}'; 'train --help' lists all options")]);
    }
    assert_eq!(said(&["--drop-last"]), ["unknown option '--drop-last'; did you mean 'data.drop_last=true'?"]);
}

#[test]
fn an_option_behind_one_dash_is_named_as_typed_and_hides_no_other_fault() {
    let lines = said(&["-net", "resnet18", "-depth", "34", "--epochs", "x"]);
    assert_eq!(
        lines[..2],
        [
            "unknown option '-net'; 'train --help' lists all options",
            "unknown option '-depth'; did you mean '--depth 34'?"
        ]
    );
    assert!(lines[2].starts_with("epochs must be") && lines.len() == 3, "{lines:#?}");
}

#[test]
fn an_option_that_does_not_exist_is_met_with_one_that_does() {
    for (line, hint) in [
        (&["--warmup", "2"][..], "did you mean '--warmup-epochs 2'?"),
        (&["--gamma", "0.5"], "did you mean 'schedule.gamma=0.5'?"),
        (&["--deterministc", "run.seed=1"], "did you mean '--deterministic'?"),
        (&["--qwerty"], "'train --help' lists all options"),
        (&["--epochs"], "a value is required for '--epochs <N>' but none was supplied; see 'train --help'"),
        (&["evaluate", "--epochs=3"], "it is an option for training only; remove it"),
        (&["evaluate", "--wich", "best"], "did you mean '--which'?"),
        (
            &["evaluate", "--which", "worst"],
            "invalid value 'worst' for '--which <CHOICE>' [possible values: best, latest]",
        ),
        (&["predict", "--top=0", "a.png"], "invalid value '0' for '--top <N>': must be a whole number, 1 to 65535"),
        (&["export"], "required arguments were not provided: --to <FORMAT>; see 'train export --help'"),
        (&["find"], "'train find' requires a subcommand but one was not provided [subcommands: lr, batch-size]"),
        (&["find", "rate"], "unrecognized subcommand 'rate'; see 'train find --help'"),
        (&["--experiment", "quickstart"], "did you mean 'experiment=quickstart'?"),
        (&["evaluate", "runs/0001"], "unknown argument 'runs/0001'; give a model as --checkpoint runs/0001"),
        (
            &["export", "runs/1", "--to", "onnx"],
            "unexpected argument 'runs/1' found; give a model as --checkpoint runs/1",
        ),
        (&["eval", "runs/1"], "unknown command 'eval'; did you mean 'train evaluate --checkpoint runs/1'?"),
        (&["verfy", "runs/1"], "unknown command 'verfy'; did you mean 'train verify runs/1'?"),
        (&["resume", "runs/1", "run.epochs=3"], "unknown command 'resume'; did you mean 'train --resume runs/1'?"),
        (&["scaling", "run.epochs=3"], "come after '--', as in 'train scaling -- run.epochs=3'"),
        (&["find", "lr", "optim.momentum=0.9"], "come after '--', as in 'train find lr -- optim.momentum=0.9'"),
        (&["sweep", "run.seed=1,2", "--epochs", "3"], "come after '--', as in 'train sweep -- --epochs'"),
        (&["launch", "--nprocs", "2", "--", "--epochs=3"], "did you mean '--nproc'?"),
        (&["launch", "--nproc=2", "--", "--epoch=3"], "did you mean '--epochs 3'?"),
        (&["sweep", "run.seed=1,2", "--", "evaluate", "--checkpoint=x"], "after '--' come arguments for training"),
        (&["evaluate", "--amp"], "it is an option for training only; remove it"),
        (
            &["scaling", "--batch-size", "8"],
            "arguments for training come after '--', as in 'train scaling -- --batch-size'",
        ),
        (&["completions", "sh"], "invalid value 'sh' for '<SHELL>' [possible values: bash"),
        (&["members", "--dist-url=tcp://n:1", "--tls-ca", "a.pem"], "encrypts the rendezvous: use --job-secret-file"),
        (
            &["rendezvous", "--bind", "here"],
            "'here' for '--bind <HOST:PORT>': must be an address and a port, as in 0.0.0.0:23456",
        ),
    ] {
        let lines = said(line);
        assert!(lines.len() == 1 && lines[0].contains(hint), "{line:?}: {lines:#?}");
    }
    let all = said(&["predict", "--top=x", "--jsn", "--checkpiont", "b", "--tls-ca=a.pem", "a.png"]);
    assert_eq!(all.len(), 4, "{all:#?}");
}

#[test]
fn completions_and_the_manual_page_know_every_flag() {
    let place = Workplace::new();
    let printed = |line: &[&str]| succeeded(&place.bare(line).output().unwrap());
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
