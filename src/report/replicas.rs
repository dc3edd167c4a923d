//! How long replicas waited for each other, and what the processes of an elastic run do.

use super::run::Run;
use super::table::{Cell, Table};
use crate::metrics::{Cause, ReplicaRecord};

const MINUTE: f64 = 60.0;

/// The tables of the last record; empty for a run of one replica.
pub(super) fn html(run: &Run) -> String {
    let Some(record) = &run.replicas else { return String::new() };
    let caption = "How long each replica worked in a step of the last minute, without waits for others, and how \
                   long its data was on the way while it waited. Others waited for it for as long as the two together \
                   exceed those of the median replica";
    let head = [
        "Replica",
        "Waited for in a minute",
        "In all",
        "Work in a step",
        "Loading",
        "Sending",
        "Process",
        "Host",
        "Device",
    ];
    let mut table = Table::new(caption, head);
    table.rows.extend(record.replicas.iter().map(row));
    let mut members = Table::new("Processes of the elastic run", ["Host", "Process", "What it does"]);
    let member =
        |(host, process, does): (&str, u32, &str)| vec![Cell::text(host), Cell::number(process), Cell::text(does)];
    members.rows.extend(record.members.iter().map(|it| member((&it.host, it.process, &it.does))));
    table.html() + &members.html()
}

fn row(it: &ReplicaRecord) -> Vec<Cell> {
    let slow = match it.slow {
        None => "",
        Some(Cause::Loader) => ": slow, waits for its loader",
        Some(Cause::Network) => ": slow, waits for its network",
        Some(Cause::Device) => ": slow, waits for its device",
    };
    vec![
        Cell::text(&(it.name() + slow)),
        Cell::bar(&format!("{:.1} s", it.waited_minute), it.waited_minute / MINUTE),
        Cell::number(format!("{:.0} s", it.waited)),
        Cell::number(format!("{:.1} ms", 1000.0 * it.work_seconds)),
        Cell::number(format!("{:.0} %", it.loading())),
        Cell::number(format!("{:.1} ms", 1000.0 * it.sending_seconds)),
        Cell::number(it.process),
        Cell::text(&it.host),
        Cell::number(it.device),
    ]
}
