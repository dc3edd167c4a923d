//! `train slurm`: checks what a batch script trains before it is printed or submitted.

use kiln_system::Result;

use crate::config::{Request, check};
use crate::launch::sbatch::submit as give;
use crate::trainer::terminal::say;

/// Prints the `script`, or submits it, unless the settings of its training are wrong.
pub fn slurm(script: &str, submit: bool, request: &Request) -> Result<()> {
    check(request)?;
    if submit {
        say(&give(script)?);
    } else {
        say(script.trim_end());
    }
    Ok(())
}
