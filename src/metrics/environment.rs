//! The machine and program version of a run, to interpret its numbers later.

use std::collections::BTreeMap;

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};
use time::OffsetDateTime;

/// This machine and this program as names and readable values, without unknown values.
pub(crate) fn environment() -> BTreeMap<String, String> {
    let kinds = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()).with_memory(MemoryRefreshKind::everything());
    let system = System::new_with_specifics(kinds);
    let gibibytes = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let processor = system.cpus().first().map(|cpu| cpu.brand().trim().to_string());
    let cores = std::thread::available_parallelism().ok();
    let pairs = [
        ("host", System::host_name()),
        ("system", System::long_os_version()),
        ("kernel", System::kernel_version()),
        ("processor", processor.filter(|name| !name.is_empty())),
        ("cores", cores.map(|cores| cores.to_string())),
        ("memory", Some(system.total_memory()).filter(|bytes| *bytes > 0).map(gibibytes)),
        ("version", Some(env!("CARGO_PKG_VERSION").into())),
        ("command", Some(command())),
    ];
    pairs.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
}

/// The command line of this process.
pub(crate) fn command() -> String {
    std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// The time, as in `2026-11-30 04:15 UTC`.
pub(crate) fn date() -> String {
    let now = OffsetDateTime::now_utc();
    let day = format!("{}-{:02}-{:02}", now.year(), u8::from(now.month()), now.day());
    format!("{day} {:02}:{:02} UTC", now.hour(), now.minute())
}
