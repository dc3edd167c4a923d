//! Rewrites the spellings of arguments to the one that clap knows.

use std::ffi::{OsStr, OsString};

use kiln_membership::Elastic;

/// Common short options of other trainers, and their meaning.
const SHORT: &[(&str, &str)] = &[
    ("-a", "--arch"),
    ("-b", "--batch-size"),
    ("-c", "--config"),
    ("-d", "--dataset"),
    ("-e", "--evaluate"),
    ("-j", "--workers"),
    ("-m", "--multirun"),
    ("-p", "--print-freq"),
    ("-vb", "--validation-batch-size"),
];

/// Options with several numbers, as in `--input-size 3 224 224`.
const LISTS: &str = "--cutmix-minmax --decay-milestones --input-size --lr-noise --mean --naflex-train-seq-lens \
                     --opt-betas --ratio --scale --std --train-batch-sizes --train-img-sizes --train-size-probs";

/// Options whose value is optional, so that clap accepts it only after `=`; the last one is a switch in other trainers.
const OPTIONAL: [&str; 2] = ["--resume", "--pretrained"];

/// Rewrites arguments for clap: options in kebab-case, as for `--batch_size 8`, and with `=` before a value that clap
/// would not take from the next argument, as for `--resume PATH` and `--lr -1e-3`. `--trainer.max_epochs 3`, as in
/// Lightning's command line, becomes a `KEY=VALUE`.
pub(super) fn normalize(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let arguments: Vec<_> = arguments.collect();
    // A switch of the scripts, behind which the directory may stand.
    let is_switch = arguments.iter().any(|it| it == "--as" || it.to_string_lossy().starts_with("--as="));
    let optional = if is_switch { &OPTIONAL[..1] } else { &OPTIONAL };
    let mut arguments = arguments.into_iter().peekable();
    let mut normal = Vec::new();
    while let Some(argument) = arguments.next() {
        if let Some(key) = key(&argument) {
            let value = if key.contains('=') { None } else { arguments.next() };
            normal
                .push(value.map_or(key.clone().into(), |value| [key.into(), "=".into(), value].into_iter().collect()));
            continue;
        }
        let mut argument = long(kebab_case(argument));
        if LISTS.split(' ').any(|name| argument == name) {
            let numbers = numbers(&mut arguments);
            if !numbers.is_empty() {
                argument.push("=");
                argument.push(numbers);
            }
        }
        if let Some(value) = arguments.next_if(|next| is_value_of(&argument, &next.to_string_lossy(), optional)) {
            argument.push("=");
            argument.push(value);
        }
        normal.push(argument);
    }
    normal
}

/// The numbers that follow, as one value.
fn numbers(arguments: &mut std::iter::Peekable<impl Iterator<Item = OsString>>) -> String {
    let is_number = |word: &OsString| word.to_string_lossy().parse::<f64>().is_ok();
    let numbers = std::iter::from_fn(|| arguments.next_if(is_number));
    numbers.map(|number| number.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// The key, and the value after `=` if there is one, of an option such as `--trainer.max_epochs=3`.
fn key(argument: &OsStr) -> Option<String> {
    let key = argument.to_str()?.strip_prefix("--")?;
    key.split('=').next()?.contains('.').then(|| key.to_string())
}

/// The long form of a short option.
fn long(argument: OsString) -> OsString {
    let joined = |short: &str| {
        let rest = argument.to_str()?.strip_prefix(short)?;
        rest.strip_prefix('=').or_else(|| rest.parse::<u32>().is_ok().then_some(rest))
    };
    let spelled = SHORT.iter().find_map(|(short, long)| match joined(short) {
        // As in -b256 and -b=256.
        Some(value) => Some(format!("{long}={value}").into()),
        None => (argument == *short).then(|| long.into()),
    });
    spelled.unwrap_or(argument)
}

/// The option with `-` for every `_` of its name; its value and other arguments do not change.
fn kebab_case(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(option) if option.starts_with("--") => {
            let (name, value) = option.split_at(option.find('=').unwrap_or(option.len()));
            format!("{}{value}", name.replace('_', "-")).into()
        }
        _ => argument,
    }
}

/// Whether `word` is the value of the option before it: for one of `optional` any word other than an option and a
/// `KEY=VALUE` (whose key has no slash), limits for `--elastic`, or a negative number.
fn is_value_of(option: &OsStr, word: &str, optional: &[&str]) -> bool {
    let key = |(key, _): (&str, &str)| key.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if option == "--elastic" {
        return word.parse::<Elastic>().is_ok();
    }
    if word.starts_with('-') {
        option.to_str().is_some_and(|option| option.starts_with("--") && !option.contains('='))
            && word.parse::<f64>().is_ok()
    } else {
        optional.iter().any(|name| option == *name) && !word.split_once('=').is_some_and(key)
    }
}
