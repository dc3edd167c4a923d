//! What words of a command line that are no settings probably mean: commands, directories.

use super::suggestion;

const COMMANDS: [&str; 12] = [
    "evaluate", "predict", "export", "config", "launch", "scaling", "find", "sweep", "verify", "report", "doctor",
    "slurm",
];

const ELSEWHERE: [(&str, &str); 10] = [
    ("eval", "evaluate"),
    ("test", "evaluate"),
    ("val", "evaluate"),
    ("validate", "evaluate"),
    ("fit", "--epochs N"),
    ("train", "--epochs N"),
    ("resume", "--resume"),
    ("help", "--help"),
    ("infer", "predict"),
    ("tune", "find lr"),
];

fn nearest(word: &str) -> Option<String> {
    let meant = ELSEWHERE.iter().find(|(known, _)| *known == word).map(|(_, command)| command.to_string());
    meant.or_else(|| suggestion::nearest(word, COMMANDS.map(String::from)))
}

/// The complaint about a command that is mistyped or another trainer's, with the words after it.
pub(super) fn command(arguments: &[String]) -> Option<String> {
    let (word, others) = arguments.split_first()?;
    let object = others.first().filter(|other| !other.contains('='))?;
    let meant = nearest(word).filter(|_| !word.contains(['=', '/']))?;
    let rest = match meant.as_str() {
        "evaluate" | "predict" | "export" => format!(" --checkpoint {object}"),
        "--resume" | "verify" | "report" => format!(" {object}"),
        _ => String::new(),
    };
    Some(format!("unknown command '{word}'; did you mean 'train {meant}{rest}'?"))
}

/// The complaint about an argument without `=`.
pub(super) fn argument(argument: &str) -> String {
    if argument.ends_with(".py") {
        return format!("unknown argument '{argument}'; leave out the name of the script");
    }
    if argument.contains('/') {
        return format!(
            "unknown argument '{argument}'; for a directory of images use --data folder --data-dir {argument}"
        );
    }
    if argument.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        return format!(
            "unknown argument '{argument}'; an address follows --serve after a =, as in --serve={argument}"
        );
    }
    match nearest(argument) {
        Some(command) => {
            let place = if command.starts_with("--") { "" } else { " a command comes before options" };
            format!("unknown argument '{argument}'; did you mean 'train {command}'?{place}")
        }
        None => format!("unknown argument '{argument}'; options begin with --, settings look like run.epochs=3"),
    }
}
