//! `train rendezvous`, `train members` and `train secret`: runs of several processes from the outside.

use std::net::SocketAddr;
use std::path::Path;

use kiln_membership::RunStatus;
use kiln_system::stop::Stop;
use kiln_system::{Error, Result, printable, shown};

use crate::config::ParallelConfig;
use crate::launch::{create_secret, hold_rendezvous, run_status};
use crate::metrics::format_duration;
use crate::metrics::line::rate;
use crate::trainer::phases::listen;
use crate::trainer::terminal::say;

/// Holds the rendezvous at `bind` until the run is over or a signal comes; returns the exit code.
pub fn rendezvous(bind: SocketAddr, parallel: &ParallelConfig) -> Result<u8> {
    listen(false);
    let stop = Stop::new();
    stop.begin();
    stop.listen_to_signals(|_| {}).map_err(Error::io("listen to signals of", "this process"))?;
    let listening = || say(&format!("rendezvous  {bind}, job '{}'", parallel.job_id));
    hold_rendezvous(bind, parallel, &listening, &|| stop.reason().is_some())?;
    Ok(stop.reason().map_or(0, |reason| reason.exit_code()))
}

/// Prints the members of the run, after asking the process of rank `drain`, if given, to leave.
pub fn members(parallel: &ParallelConfig, drain: Option<usize>) -> Result<()> {
    say(&members_table(&run_status(parallel, drain)?));
    Ok(())
}

pub fn secret(path: &Path) -> Result<()> {
    create_secret(path)?;
    say(&format!("secret      {}, readable only by you; give it to all processes with --job-secret-file", shown(path)));
    Ok(())
}

/// The state of a run and a line for each member. What members say of themselves cannot add lines or colours.
pub fn members_table(RunStatus { generation, phase, why, members }: &RunStatus) -> String {
    let mut lines = vec![format!("generation  {generation}, {phase}: {}", printable(why))];
    lines.push(format!(
        "{:>4}  {:<24}  {:>8}  {:>7}  {:<9}  {:>8}  {:>8}  {:>9}  {:>7}",
        "rank", "host", "process", "devices", "replicas", "step", "img/s", "waits/min", "waits"
    ));
    for (index, it) in members.iter().enumerate() {
        let rank = if it.has_part() { index.to_string() } else { "-".into() };
        let replicas = match it.replicas.len() {
            0 => "none".into(),
            1 => it.replicas.start.to_string(),
            _ => format!("{}-{}", it.replicas.start, it.replicas.end - 1),
        };
        let leaves = if it.draining { "  leaves" } else { "" };
        let rate = rate(Some(it.progress.images_per_second).filter(|rate| *rate > 0.0));
        let [minute, all] = it.progress.waited;
        let all = format_duration(all);
        lines.push(format!(
            "{rank:>4}  {:<24}  {:>8}  {:>7}  {replicas:<9}  {:>8}  {rate:>8}  {minute:>7.1} s  {all:>7}{leaves}",
            printable(&it.host),
            it.process,
            it.devices,
            it.progress.step
        ));
    }
    lines.join("\n")
}
