//! `train slurm`: checks what a batch script trains before it is printed or submitted.

use crate::config::{Request, faults};
use crate::error::{Error, Result};
use crate::launch::sbatch::submit as give;
use crate::trainer::terminal::say;

/// Prints the `script`, or submits it, unless the settings of its training are wrong.
pub fn slurm(script: &str, submit: bool, request: &Request) -> Result<()> {
    let faults = faults(request);
    if !faults.is_empty() {
        return Err(Error::Usage(faults));
    }
    if submit {
        say(&give(script)?);
    } else {
        say(script.trim_end());
    }
    Ok(())
}
