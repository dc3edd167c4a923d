//! Turns options of other programs that mean a command of Kiln's into that command.
//!
//! `train --nproc-per-node 2 ARGUMENTS` is torchrun's `train launch --nproc 2 -- ARGUMENTS`, and
//! `train --multirun KEY=A,B ARGUMENTS` Hydra's `train sweep KEY=A,B -- ARGUMENTS`.

use std::ffi::OsString;

use crate::config::grid::is_list;

/// Keys of Hydra for the sweep itself.
const SWEEP: [(&str, &str); 4] = [
    ("hydra.sweep.dir=", "--output-dir"),
    ("hydra.sweeper.n_trials=", "--samples"),
    ("hydra.sweeper.sampler.seed=", "--sample-seed"),
    ("hydra.launcher.n_jobs=", "--jobs"),
];

/// Options of torchrun for the launch itself, except the number of processes.
const LAUNCH: [&str; 4] = ["--nnodes", "--node-rank", "--master-addr", "--master-port"];

/// Rewrites `arguments`, which begin with the program, for the command that they mean; `is_command` knows all commands.
pub(super) fn as_command(arguments: Vec<OsString>, is_command: impl Fn(&str) -> bool) -> Vec<OsString> {
    if arguments.get(1).and_then(|word| word.to_str()).is_some_and(is_command) {
        return arguments;
    }
    if let Some((processes, rest)) = value_of("--nproc-per-node", &arguments) {
        return if processes == "1" { rest } else { launch(processes, rest) };
    }
    match arguments.iter().position(|argument| argument == "--multirun") {
        Some(at) => sweep([&arguments[..at], &arguments[at + 1..]].concat()),
        None => arguments,
    }
}

fn launch(processes: OsString, mut rest: Vec<OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![rest.remove(0), "launch".into(), "--nproc".into(), processes];
    for option in LAUNCH {
        if let Some((value, others)) = value_of(option, &rest) {
            words.extend([option.into(), value]);
            rest = others;
        }
    }
    words.push("--".into());
    words.extend(rest);
    words
}

fn sweep(mut rest: Vec<OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![rest.remove(0), "sweep".into()];
    for (key, option) in SWEEP {
        if let Some(at) = rest.iter().position(|word| word.to_string_lossy().starts_with(key)) {
            words.extend([option.into(), rest.remove(at).to_string_lossy()[key.len()..].into()]);
        }
    }
    let differs = |word: &OsString| {
        word.to_str()
            .and_then(|word| word.split_once('='))
            .is_some_and(|(key, value)| !key.starts_with('-') && is_list(value))
    };
    let (lists, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(differs);
    words.extend(lists);
    words.push("--".into());
    words.extend(rest);
    words
}

/// The value of the option `name`, and the other arguments.
fn value_of(name: &str, arguments: &[OsString]) -> Option<(OsString, Vec<OsString>)> {
    let joined = format!("{name}=");
    let at = arguments.iter().position(|word| word == name || word.to_string_lossy().starts_with(&joined))?;
    let (value, after) = match arguments[at].to_str()?.strip_prefix(&joined) {
        Some(value) => (value.into(), at + 1),
        None => (arguments.get(at + 1)?.clone(), at + 2),
    };
    Some((value, [&arguments[..at], &arguments[after..]].concat()))
}
