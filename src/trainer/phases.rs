//! Measures the phases of a run, and prints the table at its end.

use std::path::Path;
use std::time::Duration;

use kiln_engine::checkpoint::write_atomic;
use kiln_system::{Result, shown};
use tracing::subscriber::set_global_default;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

use super::recorder::RunTotals;
use super::terminal::{say, warn};
use crate::metrics::{Profiler, warnings};

pub(super) fn listen(profile: bool) -> Option<Profiler> {
    if !profile {
        // Fails if a test in this process has done it already.
        drop(set_global_default(registry().with(warnings(warn))));
        return None;
    }
    let profiler = Profiler::start(warn);
    if profiler.is_none() {
        warn("warning: --profile shows nothing: another listener in this process already receives the phases");
    }
    profiler
}

/// Writes the trace and prints the table, also with `--progress none`.
pub(super) fn report(profiler: &Profiler, trace: &Path, totals: &RunTotals) -> Result<()> {
    write_atomic(trace, &profiler.trace())?;
    say(&format!("\n{}", profiler.table(Duration::from_secs_f64(totals.training_seconds))));
    if let (sum, steps @ 1..) = totals.copied {
        let each = |count: u64| count as f64 / steps as f64;
        say(&format!(
            "copies      {:.1} kB to devices and {:.0} B to the host per step, {:.1} blocking reads",
            each(sum.bytes_to_device) / 1e3,
            each(sum.bytes_to_host),
            each(sum.blocking_reads)
        ));
    }
    say(&format!("trace       {}", shown(trace)));
    Ok(())
}
