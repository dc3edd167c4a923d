//! `train rendezvous`, `train members` and `train secret`: runs of several processes from the outside.

use std::net::SocketAddr;
use std::path::Path;

use crate::error::{Error, Result};
use crate::launch::{Attendance, attendance, create_secret, hold_rendezvous};
use crate::metrics::line::rate;
use crate::parallel::ParallelConfig;
use crate::stop::Stop;
use crate::trainer::phases::listen;
use crate::trainer::terminal::say;

/// Holds the rendezvous at `bind` until the run is over or a signal comes; returns the exit code.
pub fn rendezvous(bind: SocketAddr, parallel: &ParallelConfig) -> Result<u8> {
    listen(false);
    let stop = Stop::new();
    stop.begin();
    stop.listen_to_signals(|| {}).map_err(Error::io("listen to signals of", "this process"))?;
    let listening = || say(&format!("rendezvous  {bind}, job '{}'", parallel.job_id));
    hold_rendezvous(bind, parallel, &listening, &|| stop.reason().is_some())?;
    Ok(stop.reason().map_or(0, |reason| reason.exit_code()))
}

/// Prints who takes part in the run, after asking the process of rank `drain` to leave.
pub fn members(parallel: &ParallelConfig, drain: Option<usize>) -> Result<()> {
    say(&table(&attendance(parallel, drain)?));
    Ok(())
}

/// Writes a new secret for the processes of a run.
pub fn secret(path: &Path) -> Result<()> {
    create_secret(path)?;
    say(&format!("secret      {}, for --job-secret-file of all processes; nobody else may read it", path.display()));
    Ok(())
}

/// The run as a table.
fn table(attendance: &Attendance) -> String {
    let Attendance { generation, phase, why, present } = attendance;
    let mut lines = vec![format!("generation  {generation}, {phase}: {why}")];
    lines.push(format!(
        "{:>4}  {:<24}  {:>8}  {:>7}  {:<9}  {:>8}  {:>8}",
        "rank", "host", "process", "devices", "replicas", "step", "img/s"
    ));
    for it in present {
        let rank = it.rank.map_or("-".into(), |rank| rank.to_string());
        let replicas = match it.replicas.len() {
            0 => "none".into(),
            1 => it.replicas.start.to_string(),
            _ => format!("{}-{}", it.replicas.start, it.replicas.end - 1),
        };
        let leaves = if it.leaves { "  leaves" } else { "" };
        let rate = rate((it.images_per_second > 0.0).then_some(it.images_per_second));
        lines.push(format!(
            "{rank:>4}  {:<24}  {:>8}  {:>7}  {replicas:<9}  {:>8}  {rate:>8}{leaves}",
            it.host, it.process, it.devices, it.step
        ));
    }
    lines.join("\n")
}
