//! Text that is made from the options: completions for shells, and the manual page.

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

/// What `shell` runs to complete arguments.
pub(super) fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "train", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The manual page, in the language of `man`.
pub(super) fn manual() -> String {
    let mut text = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut text).expect("writing to memory does not fail");
    String::from_utf8_lossy(&text).into_owned()
}
