//! `--requeue`: a SLURM job that is signalled before its end saves, returns to the queue and continues later.
//!
//! SLURM starts the same command again, which must find its own run: the directory is named after the job, and a run
//! that is there is resumed.

use std::path::Path;
use std::process::Command;

use kiln_engine::checkpoint::Resume;
use kiln_system::{Error, Result};

use super::terminal::say;
use crate::config::Config;

const JOB: &str = "SLURM_JOB_ID";

/// Names the run's directory after the job unless the user named one, and resumes a run that is there.
pub(super) fn prepare(config: &mut Config) -> Result<()> {
    if !config.run.requeue {
        return Ok(());
    }
    let job = job()?;
    if config.run.output_dir.as_os_str().is_empty() {
        config.run.output_dir = Path::new("runs").join(format!("slurm-{job}"));
    }
    if config.checkpoint.resume == Resume::Off {
        config.checkpoint.resume = Resume::Auto;
    }
    Ok(())
}

/// Puts the signalled job back into the queue; only the first process does. `is_saved` decides the remedy in an error.
pub(super) fn submit(config: &Config, is_saved: bool) -> Result<()> {
    if !config.run.requeue || config.parallel.rank > 0 {
        return Ok(());
    }
    let job = job()?;
    let output = Command::new("scontrol").args(["requeue", &job]).output();
    let output = output.map_err(|reason| Error::Training(format!("cannot run 'scontrol requeue {job}': {reason}")))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
        let remedy = if is_saved {
            "the run is saved: submit it again with --resume"
        } else {
            "this job did no step and saved nothing: submit it again"
        };
        return Err(Error::Training(format!("'scontrol requeue {job}' failed: {reason}; {remedy}")));
    }
    if config.run.progress.is_text() {
        say(&format!("requeued    job {job}"));
    }
    Ok(())
}

fn job() -> Result<String> {
    let job = std::env::var(JOB).ok().filter(|job| job.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_'));
    job.filter(|job| !job.is_empty())
        .ok_or_else(|| Error::usage(format!("requeue needs a SLURM job, but {JOB} names none; remove --requeue")))
}
