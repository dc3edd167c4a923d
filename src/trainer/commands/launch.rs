//! `train launch`: checks the settings of its processes once, before any of them is started.

use std::ffi::OsString;

use kiln_membership::Machines;
use kiln_system::{Error, Result};

use crate::config::ParallelConfig;
use crate::config::{Config, Request, resolve, sketch};
use crate::launch::{self};
use crate::trainer::completed;
use crate::trainer::phases::listen;
use crate::trainer::terminal::say;

/// Starts `processes` with `arguments`, which resolve to `request`, on this one of the `machines`; returns the exit
/// code.
pub fn launch(processes: usize, machines: &Machines, arguments: &[OsString], mut request: Request) -> Result<u8> {
    listen(false);
    let typed = sketch(&request.clone().alone()).map(|config| config.parallel.dist_url);
    refuse_address(machines, typed.unwrap_or_default())?;
    let first = machines.variables_of_first(processes);
    request.environment.retain(|(name, _)| first.iter().all(|(set, _)| set != name));
    request.environment.extend(first);
    let Config { run, parallel, .. } = resolve(&completed(request)?)?.config;
    let job = if parallel.job_id == ParallelConfig::default().job_id {
        String::new()
    } else {
        format!(" --job-id {}", parallel.job_id)
    };
    let listening = |address: &str| {
        if run.progress.is_text() {
            say(&format!("rendezvous  {address}; list members: train members --dist-url {address}{job}"));
        }
    };
    launch::launch(processes, machines, arguments, &parallel, &listening)
}

/// Refuses a `--dist-url` other than the address where the processes will meet.
fn refuse_address(machines: &Machines, typed: String) -> Result<()> {
    let (place, remedy) = match machines.meeting() {
        None => {
            ("a free port of this machine".into(), "and for several use --nnodes N --master-addr HOST before the --")
        }
        Some((host, port)) => (format!("tcp://{host}:{port}"), "or give the same with --master-addr and --master-port"),
    };
    if typed.is_empty() || typed == place || typed == "env://" {
        return Ok(());
    }
    Err(Error::usage(format!(
        "dist url is '{typed}', but the processes of 'train launch' meet at {place}; remove --dist-url, {remedy}"
    )))
}
